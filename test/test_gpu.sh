#!/usr/bin/env bash
# Runs the tests and examples that need a GPU, and prints a line for each. `make test-gpu` builds them
# into build/gpu; the machine needs no Go. Full output goes to OUT (default build/gpu/out). CHECKS is
# a regular expression of the checks to run (default: all), CUDA_VISIBLE_DEVICES the GPUs to use.
# Exits with 1 if a check fails. Without a GPU it says so and exits with 0.
set -uo pipefail
cd "$(dirname "$0")/.."
bin=${BIN:-build/gpu}
out=${OUT:-$bin/out}
mkdir -p "$out"
gpus=$(nvidia-smi --list-gpus 2>/dev/null | wc -l)
if [ "$gpus" != 0 ] && [ -n "${CUDA_VISIBLE_DEVICES:-}" ]; then
	gpus=$(tr , '\n' <<<"$CUDA_VISIBLE_DEVICES" | wc -l)
fi
if [ "$gpus" = 0 ]; then
	echo "skipped: nvidia-smi lists no GPU here"
	exit 0
fi
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | sort | uniq -c
export GODDP_REQUIRE_CUDA=1
failed=0
torch=yes
"${PYTHON_EXEC:-python3}" -c 'import torch' 2>/dev/null || torch=no

# check NAME COMMAND...: runs a command, which must exit with 0.
check() {
	local name=$1 started=$SECONDS verdict=ok
	[[ $name =~ ${CHECKS:-.} ]] || return 0
	shift
	if ! "$@" >"$out/$name.log" 2>&1; then
		verdict=FAILED failed=1
		tail -n 20 "$out/$name.log"
	fi
	printf '%-28s %-7s %4d s\n' "$name" $verdict $((SECONDS - started))
}

# toy RANKS AVERAGE: checks that every rank prints the average.
toy() {
	"$bin/golaunch" --nproc-per-node "$1" "$bin/toy" | tee /dev/stderr | grep -c "reduced dy/dw: $2\$" | grep -qx "$1"
}

# mlp RANKS TYPE: checks that all ranks end with the same parameters.
mlp() {
	"$bin/golaunch" --nproc-per-node "$1" "$bin/mlp" --steps 100 --dtype "$2" | tee /dev/stderr |
		sed -n 's/.*sha256 //p' | sort | uniq -c | awk -v n="$1" '{print $1 == n ? "equal" : "differ"}' | grep -qx equal
}

# trace RANKS: checks, by the spans of a trace that the devices' events time, that more than half of
# the communication overlapped the computation, and that the trace has the kernels. Keeps the trace in OUT.
trace() {
	"$bin/golaunch" --nproc-per-node "$1" "$bin/mlp" --steps 50 --trace "$out/trace_$1.json" | tee /dev/stderr |
		sed -n 's/.*: \([0-9]*\) reductions.* \([0-9]*\)% hidden.*/\1 \2/p' | awk '$1 >= 20 && $2 > 50 {n++} END {exit !n}' &&
		"$bin/goddp" trace "$out/trace_$1.json" | tee /dev/stderr | awk '/no kernels/ {n++} END {exit n}'
}

check device_cuda "$bin/cuda.test" -test.v
check comm_nccl "$bin/nccl.test" -test.v -test.run '^TestGPU' # the others use fake libraries, which need a compiler
check comm_commtest "$bin/commtest.test" -test.v -test.run '^TestGPU'
check ddp "$bin/ddp.test" -test.v -test.run '^TestGPU'
check ddp_zero "$bin/zero.test" -test.v -test.run '^TestGPU'
check ddp_commhook "$bin/commhook.test" -test.v -test.run '^TestGPU'
check profile "$bin/profile.test" -test.v -test.run '^TestGPU'
check checkpoint "$bin/checkpoint.test" -test.v -test.run '^TestGPU'
for ranks in 1 2 4; do
	if [ "$ranks" -le "$gpus" ]; then
		check "toy_$ranks" toy $ranks "$(awk "BEGIN {print 7 * ($ranks - 1) / 2}")"
		for collective in all_reduce all_gather reduce_scatter broadcast reduce all_to_all sendrecv; do
			[ $ranks = 1 ] || check "bench_${collective}_$ranks" "$bin/golaunch" --nproc-per-node $ranks "$bin/goddp" bench $collective -b 1K -e 64M -f 8 -n 5
		done
		check "mlp_${ranks}_float32" mlp $ranks float32
		check "mlp_${ranks}_tf32" env GODDP_ALLOW_TF32=1 bash -c "$(declare -f mlp); bin=$bin; mlp $ranks float32"
		check "mlp_${ranks}_bfloat16" mlp $ranks bfloat16
		[ $ranks = 1 ] || check "trace_$ranks" trace $ranks
		[ $ranks = 1 ] || check "matrix_$ranks" env BIN="$bin" test/matrix.sh $ranks
		if [ $torch = yes ]; then
			check "parity_$ranks" env BIN="$bin" LARGE=1 test/parity.sh $ranks
		fi
	fi
done
if command -v compute-sanitizer >/dev/null; then
	check memcheck_conformance compute-sanitizer --tool memcheck --error-exitcode 9 "$bin/cuda.test" -test.run TestConformance
	check memcheck_toy compute-sanitizer --tool memcheck --report-api-errors no --error-exitcode 9 "$bin/toy"
fi
exit $failed
