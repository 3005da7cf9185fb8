#!/usr/bin/env bash
# Compares an epoch of examples/fashion, with its evaluation, with PyTorch DDP and its DataLoader,
# on two ranks with one thread each (with one GPU each if there are GPUs). golaunch starts both in
# turn, for several rounds. Prints the median seconds of the epochs after the first, and their
# ratio. Needs python3-torch (PYTHON_EXEC names another interpreter), libopenblas0-pthread and
# dataset-fashion-mnist (DATA names another folder). BIN is the folder of golaunch and fashion on a
# machine without Go.
set -euo pipefail
cd "$(dirname "$0")/.."
BIN=${BIN:-}
if [ -z "$BIN" ]; then
	go build -o build/ ./cmd/golaunch ./examples/fashion
	BIN=build
fi
export OMP_NUM_THREADS=1 PYTHON_EXEC=${PYTHON_EXEC:-/usr/bin/python3}
data=${DATA:-/usr/share/datasets/fashion-mnist} rounds=${ROUNDS:-3} ranks=${RANKS:-2}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

median() { sort -g | awk '{a[NR] = $1} END {print NR % 2 ? a[(NR + 1) / 2] : (a[NR / 2] + a[NR / 2 + 1]) / 2}'; }

printf '%-6s %10s %10s %7s\n' model goddp pytorch ratio
for model in ${MODELS:-mlp cnn}; do
	epochs=$([ $model = mlp ] && echo 4 || echo 3)
	flags=(--model "$model" --data "$data" --epochs "$epochs")
	: >"$work/ours" >"$work/theirs"
	for _ in $(seq "$rounds"); do
		"$BIN/golaunch" --nproc-per-node "$ranks" "$BIN/fashion" "${flags[@]}" --log "$work/log" >"$work/out" 2>&1
		sed -nE 's/.*"time":([0-9.]+).*"epoch".*/\1/p' "$work/log" | awk 'NR > 1 {print $1 - last} {last = $1}' >>"$work/ours"
		rm "$work/log"
		"$BIN/golaunch" --nproc-per-node "$ranks" bench/torch_fashion.py "${flags[@]}" 2>&1 |
			sed -nE 's/.*seconds ([0-9.]+).*/\1/p' | tail -n +2 >>"$work/theirs"
	done
	o=$(median <"$work/ours") t=$(median <"$work/theirs")
	printf '%-6s %10s %10s %7.2f\n' "$model" "$o" "$t" "$(awk "BEGIN {print $o / $t}")"
done
