#!/usr/bin/env bash
# Measures Gorgonia graphs on several ranks (examples/gorgonia): the losses compared with the
# program of one process, how much of the reductions overlaps the backward pass, and what the
# wrapper costs one rank. Needs python3 and libopenblas0-pthread.
set -euo pipefail
cd "$(dirname "$0")/.."
go build -o build/ ./cmd/golaunch ./examples/gorgonia ./examples/gorgonia/single
go build -o build/bench-gorgonia ./bench/gorgonia
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
export OMP_NUM_THREADS=1 GODDP_DEVICE=cpu

for flag in --float32=false --float32; do
	build/single "$flag" >"$out/single"
	for n in 2 4; do
		build/golaunch --nproc-per-node "$n" build/gorgonia "$flag" --bucket-cap-mb 1 >"$out/$n"
		printf '%s %d ranks: ' "$flag" "$n"
		python3 bench/gorgonia.py losses "$out/single" "$out/$n"
	done
done
# overlap RANKS FLAGS...: prints the overlap of three rounds.
overlap() {
	printf '%d ranks: %s\n' "$1" "${*:2}"
	for round in 1 2 3; do
		build/golaunch --nproc-per-node "$1" build/gorgonia "${@:2}" --bucket-cap-mb 1 --epochs 20 --trace "$out/trace$round.json" | grep reductions
	done
	python3 bench/gorgonia.py overlap "$out"/trace?.json
}
for first in 0 0.03; do # 0: as --bucket-cap-mb says; 0.03: the last layer alone
	overlap 2 --first-bucket-cap-mb $first
	overlap 4 --first-bucket-cap-mb $first
	overlap 1 --first-bucket-cap-mb $first --batch 128 --samples 500 # the load of each of two ranks, with an idle core
done
build/bench-gorgonia --size 1000 --batch 64 --layers 3
