#!/usr/bin/env bash
# Measures what saving the state of a training costs, in goddp (bench/checkpoint) and in PyTorch
# (bench/torch_checkpoint.py): torch.save by rank 0, DCP's async_save, and async_save with
# page-locked staging memory that is kept. golaunch starts all of them in turn, ROUNDS times
# (default 3). The results are medians over the rounds, in milliseconds: a step without a save,
# the step that begins a save and its ratio to the former, a step while a save runs and its ratio,
# and the time from the call until the checkpoint is durable. The last line is the time to write
# and fsync equally many bytes.
#
#	DIR=/data/ckpt bench/checkpoint.sh
#
# DIR is a folder on the disk to measure. RANKS is the number of ranks (default 2). MODEL holds
# flags for all programs (default: 1.5 GB of state, as of the smallest GPT-2). BIN is the folder of
# golaunch and checkpoint on a machine without Go. PYTHON_EXEC is a Python with PyTorch.
set -euo pipefail
cd "$(dirname "$0")/.."
: "${DIR:?names a folder on the disk to be measured}"
BIN=${BIN:-}
if [ -z "$BIN" ]; then
	go build -o build/ ./cmd/golaunch ./bench/checkpoint
	BIN=build
fi
export PYTHON_EXEC=${PYTHON_EXEC:-/usr/bin/python3}
read -ra flags <<<"${MODEL:-}"
work=$(mktemp -d) data=$(mktemp -d -p "$DIR")
trap 'rm -rf "$work" "$data"' EXIT

# measure NAME COMMAND...: appends the program's line of JSON to the file NAME.
measure() {
	local name=$1
	shift
	"$BIN/golaunch" --nproc-per-node "${RANKS:-2}" "$@" --dir "$data/$name" ${flags[@]+"${flags[@]}"} >"$work/out" 2>"$work/err" ||
		{ cat "$work/err" >&2; return 1; }
	sed 's/^\[[^]]*\]: //' "$work/out" | sed "s/^/$name: /" >&2 # print each result at once: a round takes minutes
	grep step_ms "$work/out" >>"$work/$name" || sed 's/^\[[^]]*\]: //' "$work/out" >"$work/$name.skipped"
	rm -rf "${data:?}/$name"
}

# of NAME FIELD: prints the median over the rounds.
of() {
	sed -nE "s/.*\"$2\": ?([0-9.]+).*/\1/p" "$work/$1" | sort -g |
		awk '{a[NR] = $1} END {print NR % 2 ? a[(NR + 1) / 2] : (a[NR / 2] + a[NR / 2 + 1]) / 2}'
}

names=(goddp goddp-zero torch.save async_save async_save-pinned)
for _ in $(seq "${ROUNDS:-3}"); do
	measure goddp "$BIN/checkpoint"
	measure goddp-zero "$BIN/checkpoint" --zero
	measure torch.save bench/torch_checkpoint.py --mode save
	measure async_save bench/torch_checkpoint.py --mode async
	measure async_save-pinned bench/torch_checkpoint.py --mode pinned
done
printf '%-18s %9s %9s %6s %9s %6s %9s\n' '' step begins ratio during ratio durable
for name in "${names[@]}"; do
	if [ -e "$work/$name.skipped" ]; then
		printf '%-18s %s\n' "$name" "$(tail -n 1 "$work/$name.skipped")"
		continue
	fi
	step=$(of $name step_ms) begins=$(of $name step_that_begins_a_save_ms) during=$(of $name step_while_a_save_runs_ms)
	awk -v n="$name" -v s="$step" -v b="$begins" -v d="$during" -v t="$(of $name durable_ms)" \
		'BEGIN {printf "%-18s %9.2f %9.2f %6.2f ", n, s, b, b / s
			printf d ? "%9.2f %6.2f" : "%9s %6s", d ? d : "-", d ? d / s : "-"
			printf " %9.1f\n", t}'
done
printf '%-18s %53.1f\n' "write and fsync" "$(of goddp raw_write_ms)"
