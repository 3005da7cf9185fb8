#!/usr/bin/env bash
# What happens on two GPUs when a rank fails, and what being ready for it costs.
# `make gpu-failures` builds the programs into build/gpu; the machine need not have
# Go. Takes about four minutes.
#
#   1. the cost of watchdog and flight recorder, in percent of a training step;
#   2. the fault campaign (test/chaos) where nobody compares the ranks' calls before
#      they run: calls of goddp's own kernel, and then of NCCL; and the same where
#      they are compared;
#   3. two ranks that train on in the same processes after a stall.
#
# Flight records and output of every scenario go to OUT/failures.tar.gz (OUT is
# by default build/gpu/out). Exits with 1 if something is wrong. GODDP_DEVICE=cpu
# runs the same on two cores.
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

# wrong WHAT: something is.
wrong() {
	echo "WRONG: $1"
	failed=1
}

# ranks COMMAND...: as two ranks.
ranks() { "$bin/golaunch" --nproc-per-node 2 --shutdown-timeout 2 "$@"; }

echo "== the cost of watchdog and flight recorder"
cost() { ranks "$bin/overhead" "$@" 2>&1 | tee -a "$kept/overhead.txt" || wrong "the cost of $*"; }
if [ "$device" = cpu ]; then
	cost --size 512 --batch 128 --limit 25 # a machine that does other things too
else
	cost --dtype float32
	cost --dtype bfloat16 --steps 60
fi

# The seed puts the stall before a reduction of memory from pg.Alloc, and one
# rank that is killed under golaunch, whose record golaunch then writes.
# campaign FOLDER ARGUMENTS...: keeps what it leaves behind in that folder of kept.
campaign() {
	local folder=$kept/$1
	shift
	"$bin/chaos" -bin "$bin" -device "$device" -ranks 2 -j 1 -timeout 3s -seed 963410 -n 42 \
		-modes "${MODES:-async,blocking}" -each -keep "$folder" "$@" || wrong "the campaign $*"
}
echo "== calls that nobody compares"
campaign calls -faults kill,stop,delay,skip,resize
if [ "$device" = cuda ]; then # the calls are so small that goddp's own kernel has had them
	echo "== the same where NCCL has them"
	GODDP_NO_SMALL_ALLREDUCE=1 campaign nccl -faults kill,stop,delay,skip,resize
fi
echo "== what goddp analyze makes of the records, where a rank was killed under golaunch"
"$bin/goddp" analyze "$kept/calls/000-kill-async" | tee "$kept/analyze.txt"
grep -q 'rank 1 .* was killed by SIGKILL' "$kept/analyze.txt" || wrong "goddp analyze"
echo "== calls that the ranks compare: GODDP_DEBUG=DETAIL"
campaign detail -faults skip,resize -detail

echo "== training on after a stall, in the same processes"
# train ARGUMENTS...: prints what the parameters are in the end, on each rank.
train() { ranks "$bin/recover" --timeout 8s "$@" 2>&1 | tee -a "$kept/recover.txt" | sed -n 's/.*\(rank .\): params sha256 /\1 /p' | sort; }
undisturbed=$(train)
recovered=$(train --stall-rank 1 --stall-step 5)
grep 'broke' "$kept/recover.txt"
echo "$recovered"
if [ "$(wc -l <<<"$recovered")" != 2 ] || [ "$recovered" != "$undisturbed" ] || ! grep -q 'rank 0: group 1 broke: .*timed out' "$kept/recover.txt"; then
	wrong "the end is not that of a run without a stall: $undisturbed"
fi

tar -czf "$out/failures.tar.gz" -C "$kept" . || wrong "keeping the records"
[ $failed = 0 ] && echo "all as promised"
exit $failed
