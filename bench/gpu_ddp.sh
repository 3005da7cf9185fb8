#!/usr/bin/env bash
# Compares the step time of examples/mlp on GPUs with PyTorch DDP, as users write it and tuned.
# golaunch starts all in turn. Prints medians in milliseconds, the ratio of goddp to PyTorch's best,
# and the peak of device memory in use by goddp and by tuned PyTorch, without what CUDA and NCCL
# use. Arguments: numbers of ranks (default 1). MODEL holds the model's flags (default 3 x
# Linear(4000,4000), batch 1000), TYPES the element types. BIN is the folder of golaunch and mlp
# (default build/; make build), PYTHON_EXEC a Python with PyTorch.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${BIN:-build}
export PYTHON_EXEC=${PYTHON_EXEC:-python3}
read -ra flags <<<"${MODEL:---size 4000 --batch 1000 --layers 3} --steps ${STEPS:-40}"

median() { sort -n | awk '{a[NR] = $1} END {print a[int((NR + 1) / 2)]}'; }
out=$(mktemp)
trap 'rm -f "$out"' EXIT
ours() {
	"$bin/golaunch" --nproc-per-node "$@" --json >"$out"
	sed -n 's/.*"ms":\([0-9.]*\).*/\1/p' "$out" | tail -n +6 | median
	sed -n 's/.*"peak_mib":\([0-9.]*\).*"rank":0.*/\1/p' "$out"
}
theirs() {
	"$bin/golaunch" --nproc-per-node "$@" >"$out"
	sed -n 's/.*median //p; s/.*peak MiB //p' "$out" | tac
}

printf '%6s %-9s %9s %9s %9s %7s %10s %10s\n' ranks type goddp pytorch tuned ratio 'goddp MiB' 'tuned MiB'
for ranks in "${@:-1}"; do
	for type in ${TYPES:-float32 tf32 bfloat16}; do
		export GODDP_ALLOW_TF32=0
		dtype=$type
		if [ $type = tf32 ]; then GODDP_ALLOW_TF32=1 dtype=float32; fi
		read -r o om < <(ours "$ranks" "$bin/mlp" "${flags[@]}" --dtype $dtype | paste -sd' ')
		read -r p _ < <(theirs "$ranks" bench/torch_mlp.py "${flags[@]}" --dtype $dtype --plain | paste -sd' ')
		read -r t tm < <(theirs "$ranks" bench/torch_mlp.py "${flags[@]}" --dtype $dtype | paste -sd' ')
		printf '%6s %-9s %9s %9s %9s %7s %10.0f %10.0f\n' "$ranks" $type "$o" "$p" "$t" "$(awk "BEGIN {printf \"%.2f\", $o / ($p < $t ? $p : $t)}")" "$om" "$tm"
	done
done
