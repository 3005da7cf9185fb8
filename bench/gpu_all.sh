#!/usr/bin/env bash
# Runs everything that is checked and measured on GPUs, in about twelve minutes, on a machine with
# four of them that is available only for minutes. Parts that take no times run side by side on the
# halves of the machine; the measurements follow. With two GPUs it leaves out the parts that need
# four. `make test-gpu` and `make gpu-failures` build what it needs. PACK is the package of
# bench/gpu_cu.sh. Prints a line for each part and writes its output to a file in OUT (default
# build/gpu/out). PARTS is a regular expression of the parts to run. Exits with 1 if one fails, or
# takes more than five minutes.
set -uo pipefail
cd "$(dirname "$0")/.."
export BIN=${BIN:-$PWD/build/gpu}
out=${OUT:-$BIN/out}
mkdir -p "$out"
results=$(mktemp)
trap 'rm -f "$results"' EXIT

# part NAME COMMAND...: runs a part, with its output in a file.
part() {
	local name=$1 began=$SECONDS verdict=ok
	[[ $name =~ ${PARTS:-.} ]] || return 0
	shift
	OUT=$out/$name timeout 300 "$@" >"$out/$name.txt" 2>&1 || verdict=FAILED
	printf '%-16s %-7s %4d s\n' "$name" $verdict $((SECONDS - began)) | tee -a "$results"
}

# on GPUS: limits the following commands to these GPUs.
on() { export CUDA_VISIBLE_DEVICES=$1; }

gpus=$(nvidia-smi --list-gpus | wc -l)
half=2,3 ranks=(1 2 4)
[ "$gpus" -ge 4 ] || half=0,1 ranks=(1 2)
# four NAME COMMAND...: runs a part that needs four GPUs.
four() { [ "$gpus" -lt 4 ] || part "$@"; }
# beside: waits for the earlier parts unless there are enough GPUs to run side by side with them.
beside() { [ "$gpus" -ge 4 ] || wait; }

# One test compares times with each other: it runs first, alone.
(on 0,1 && part overlap "$BIN/ddp.test" -test.v -test.run 'TestGPUReductions|TestGPUSteadyState')
(on 0,1 && CHECKS='^(ddp|matrix_2|toy_2|mlp_2)' part suite_ddp test/test_gpu.sh) &
beside
(on $half && CHECKS='^(device_cuda|toy_1|mlp_1)' part suite_device test/test_gpu.sh) &
(on ${half#*,} && CHECKS='^memcheck' part suite_memcheck test/test_gpu.sh) &
beside
(on $half && CHECKS='^(comm_|bench.*_2)' part suite_nccl test/test_gpu.sh && LARGE=1 part parity_2 test/parity.sh 2 && part cu bench/gpu_cu.sh) &
wait
CHECKS='^(toy|mlp|bench.*|matrix|parity)_4' four suite_4 test/test_gpu.sh
# The following parts take times.
CHECKS='^trace' part trace test/test_gpu.sh
part percall_2 "$BIN/golaunch" --nproc-per-node 2 "$BIN/percall"
four percall_4 "$BIN/golaunch" --nproc-per-node 4 "$BIN/percall"
part allreduce_2 bench/gpu_allreduce.sh 2
four allreduce_4 bench/gpu_allreduce.sh 4
# A call of bench/steps.sh by itself has three rounds and all of PyTorch's ways, and takes much longer.
ROUNDS=1 WAYS='tuned captured' JSON=$out/steps.json part steps bench/steps.sh "${ranks[@]}"
part latency bench/gpu_ddp.sh "${ranks[@]}"
part hostcost "$BIN/golaunch" "$BIN/hostcost"
four hooks bench/gpu_hooks.sh 4
part failures test/gpu_failures.sh
! grep -q FAILED "$results"
