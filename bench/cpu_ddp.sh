#!/usr/bin/env bash
# Compares the step time of examples/mlp with PyTorch over Gloo, on two ranks with one thread each.
# golaunch starts both in turn, for several rounds. Prints the medians in milliseconds and their
# ratio. Needs python3-torch (PYTHON_EXEC names another interpreter) and libopenblas0-pthread.
set -euo pipefail
cd "$(dirname "$0")/.."
go build -o build/ ./cmd/golaunch ./examples/mlp
export OMP_NUM_THREADS=1 PYTHON_EXEC=${PYTHON_EXEC:-/usr/bin/python3}
rounds=${ROUNDS:-3}

median() { sort -n | awk '{a[NR] = $1} END {print a[int((NR + 1) / 2)]}'; }

printf '%-28s %10s %10s %7s\n' 'size x batch x layers' goddp pytorch ratio
for shape in '512 64 3' '1000 250 3' '64 32 16'; do
	read -r size batch layers <<<"$shape"
	flags=(--size "$size" --batch "$batch" --layers "$layers" --steps 60)
	ours=() theirs=()
	for _ in $(seq "$rounds"); do
		ours+=("$(build/golaunch --nproc-per-node 2 build/mlp "${flags[@]}" --json | sed -n 's/.*"ms":\([0-9.]*\).*/\1/p' | tail -n +6 | median)")
		theirs+=("$(build/golaunch --nproc-per-node 2 bench/torch_steps.py --latency --ways tuned "${flags[@]}" | sed -n 's/.*"step_ms": \([0-9.]*\).*/\1/p')")
	done
	o=$(printf '%s\n' "${ours[@]}" | median) t=$(printf '%s\n' "${theirs[@]}" | median)
	printf '%-28s %10s %10s %7.2f\n' "$size x $batch x $layers" "$o" "$t" "$(awk "BEGIN {print $o / $t}")"
done
