#!/usr/bin/env bash
# Tests failures of ranks on two GPUs, and measures the cost of failure handling. Takes about four
# minutes. `make gpu-failures` builds the programs into build/gpu; the machine needs no Go.
#
#   1. the cost of the watchdog and the flight recorder, in percent of a training step;
#   2. the fault campaign (test/chaos) with calls that the ranks do not compare before the calls
#      run, first calls of goddp's own kernel and then of NCCL; and with calls that they compare.
#
# Flight records and output of every scenario go to OUT/failures.tar.gz (OUT is build/gpu/out by
# default). Exits with 1 if something is wrong. GODDP_DEVICE=cpu runs the same on two cores.
set -uo pipefail
cd "$(dirname "$0")/.."
bin=${BIN:-build/gpu}
out=${OUT:-$bin/out}
device=${GODDP_DEVICE:-cuda}
mkdir -p "$out"
kept=$(mktemp -d)
trap 'rm -rf "$kept"' EXIT
failed=0
if [ "$device" = cuda ]; then
	gpus=$(nvidia-smi --list-gpus 2>/dev/null | wc -l)
	if [ "$gpus" -lt 2 ]; then
		echo "skipped: nvidia-smi lists $gpus GPUs here, and this takes 2"
		exit 0
	fi
	nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | sort | uniq -c
fi
export GODDP_DEVICE=$device

# wrong WHAT: reports a failed check.
wrong() {
	echo "WRONG: $1"
	failed=1
}

# ranks COMMAND...: runs the command on two ranks.
ranks() { "$bin/golaunch" --nproc-per-node 2 --shutdown-timeout 2 "$@"; }

echo "== the cost of watchdog and flight recorder"
cost() { ranks "$bin/overhead" "$@" 2>&1 | tee -a "$kept/overhead.txt" || wrong "the cost of $*"; }
if [ "$device" = cpu ]; then
	cost --size 512 --batch 128 --limit 25 # other programs may use the machine too
else
	cost --dtype float32
	cost --dtype bfloat16 --steps 60
fi

# campaign FOLDER ARGUMENTS...: runs the campaign and keeps its records and outputs in FOLDER below
# kept. With this seed, one stall comes before a reduction of memory from pg.Alloc, and one rank is
# killed under golaunch, which then writes the rank's record.
campaign() {
	local folder=$kept/$1
	shift
	"$bin/chaos" -bin "$bin" -device "$device" -ranks 2 -j 1 -timeout 3s -seed 963410 -n 42 \
		-modes "${MODES:-async,blocking}" -each -keep "$folder" "$@" || wrong "the campaign $*"
}
echo "== calls that the ranks do not compare"
campaign calls -faults kill,stop,delay,skip,resize
if [ "$device" = cuda ]; then # the calls above were small enough for goddp's own kernel
	echo "== the same calls through NCCL"
	GODDP_NO_SMALL_ALLREDUCE=1 campaign nccl -faults kill,stop,delay,skip,resize
fi
echo "== goddp analyze on the records of a job whose rank was killed under golaunch"
"$bin/goddp" analyze "$kept/calls/000-kill-async" | tee "$kept/analyze.txt"
grep -q 'rank 1 .* was killed by SIGKILL' "$kept/analyze.txt" || wrong "goddp analyze"
echo "== calls that the ranks compare: GODDP_DEBUG=DETAIL"
campaign detail -faults skip,resize -detail

tar -czf "$out/failures.tar.gz" -C "$kept" . || wrong "keeping the records"
[ $failed = 0 ] && echo "all as promised"
exit $failed
