#!/usr/bin/env bash
# Compares the latency of a step of examples/mlp on GPUs with PyTorch DDP, as users write it and tuned: a
# barrier precedes each step, and a synchronisation ends it. bench/steps.sh compares steps in a row.
# golaunch starts both in turn. Prints medians in milliseconds, the ratio of goddp to PyTorch's best,
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
# number NAME LINE: prints a number of rank 0's JSON object.
number() { sed -n "s/.*\"$1\": *\([0-9.]*\).*/\1/p" <<<"$2"; }

printf '%6s %-9s %9s %9s %9s %7s %10s %10s\n' ranks type goddp pytorch tuned ratio 'goddp MiB' 'tuned MiB'
for ranks in "${@:-1}"; do
	for type in ${TYPES:-float32 tf32 bfloat16}; do
		export GODDP_ALLOW_TF32=0
		dtype=$type
		if [ "$type" = tf32 ]; then GODDP_ALLOW_TF32=1 dtype=float32; fi
		ours=$("$bin/golaunch" --nproc-per-node "$ranks" "$bin/mlp" "${flags[@]}" --dtype $dtype --json)
		{ read -r plain; read -r tuned; } < <("$bin/golaunch" --nproc-per-node "$ranks" bench/torch_steps.py --latency "${flags[@]}" --types "$type" | grep '"name"')
		o=$(number ms "$ours" | tail -n +6 | median) p=$(number step_ms "$plain") t=$(number step_ms "$tuned")
		printf '%6s %-9s %9s %9.3f %9.3f %7s %10.0f %10.0f\n' "$ranks" "$type" "$o" "$p" "$t" "$(awk "BEGIN {printf \"%.2f\", $o / ($p < $t ? $p : $t)}")" \
			"$(number peak_mib "$(grep '"rank":0' <<<"$ours" | grep peak_mib)")" "$(number peak_mib "$tuned")"
	done
done
