#!/usr/bin/env bash
# Measures how communication hooks change the step time of examples/mlp at its default size on GPUs.
# Prints the median step in milliseconds, its ratio to that of the plain all-reduce, and the last
# loss. Arguments: numbers of ranks (default 2). BIN is the folder of golaunch and mlp (default
# build/; make build), TYPES as in gpu_ddp.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${BIN:-build}
out=$(mktemp)
trap 'rm -f "$out"' EXIT

printf '%6s %-9s %-10s %9s %7s %s\n' ranks type hook ms ratio 'last loss'
for ranks in "${@:-2}"; do
	for type in ${TYPES:-float32 tf32}; do
		export GODDP_ALLOW_TF32=0
		dtype=$type plain=
		if [ "$type" = tf32 ]; then GODDP_ALLOW_TF32=1 dtype=float32; fi
		for hook in '' bf16 fp16 int8 powersgd noop; do
			"$bin/golaunch" --nproc-per-node "$ranks" "$bin/mlp" --steps "${STEPS:-100}" --lr 1 --dtype "$dtype" --hook "$hook" --json >"$out"
			ms=$(sed -n 's/.*"ms":\([0-9.]*\).*/\1/p' "$out" | tail -n +6 | sort -n | awk '{a[NR] = $1} END {print a[int((NR + 1) / 2)]}')
			plain=${plain:-$ms}
			printf '%6s %-9s %-10s %9s %7s %s\n' "$ranks" "$type" "${hook:-allreduce}" "$ms" "$(awk "BEGIN {printf \"%.2f\", $ms / $plain}")" \
				"$(sed -n 's/.*"loss":\([^,]*\),.*/\1/p' "$out" | tail -n 1)"
		done
	done
done
