#!/usr/bin/env bash
# Compares a step of a small Llama (53 million parameters) with PyTorch over Gloo, on two ranks with one thread each, on the
# CPU. golaunch starts both in turn, for several rounds. Prints rank 0's medians of wall time and of processor time, in
# milliseconds. On a machine that other programs use, only the processor times tell something. PyTorch runs twice: as
# installed, and with the kernels of OpenBLAS that goddp selects on a processor that OpenBLAS does not know.
# Needs python3-torch (PYTHON_EXEC names another interpreter) and libopenblas0-pthread.
set -euo pipefail
cd "$(dirname "$0")/.."
go build -o build/ ./cmd/golaunch ./bench/decoder
export OMP_NUM_THREADS=1 GODDP_DEVICE=cpu PYTHON_EXEC=${PYTHON_EXEC:-/usr/bin/python3}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
shape=(--layers 4 --hidden 768 --inner 2048 --heads 12 --key-heads 12 --vocab 32000 --batch 2 --length 512 --warmup 1 --steps "${STEPS:-3}")

median() { sort -n | awk '{a[NR] = $1} END {print a[int((NR + 1) / 2)]}'; }
field() { sed -n "s/.*\"$1\": *\([0-9.]*\).*/\1/p" "$out/$2" | median; }

for _ in $(seq "${ROUNDS:-3}"); do
	build/golaunch --nproc-per-node 2 build/decoder "${shape[@]}" >>"$out/goddp"
	OPENBLAS_CORETYPE=${CORE:-SkylakeX} build/golaunch --nproc-per-node 2 bench/torch_llama.py "${shape[@]}" >>"$out/pytorch"
	build/golaunch --nproc-per-node 2 bench/torch_llama.py "${shape[@]}" >>"$out/installed"
done
printf '%-10s %10s %12s\n' '' 'step, ms' 'processor, ms'
for who in goddp pytorch installed; do
	printf '%-10s %10.0f %12.0f\n' "$who" "$(field step_ms $who)" "$(field cpu_ms $who)"
done
