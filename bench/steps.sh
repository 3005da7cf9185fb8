#!/usr/bin/env bash
# Compares training steps in a row (bench/steps), uncaptured and captured, with PyTorch DDP's as users
# write them, tuned, captured in a CUDA graph and compiled (bench/torch_steps.py). golaunch starts all in
# turn, ROUNDS times (default 3). Prints medians of the mean milliseconds of a step, the ratio of goddp's
# best to PyTorch's best, and the peak memory of these two; fails if their losses differ. Arguments: numbers
# of ranks (default 1). MODELS holds the models' flags, one model a line; TYPES the element types; WAYS
# PyTorch's ways. The medians and losses are also written as JSON lines to JSON (default: nowhere). BIN is
# the folder of golaunch and steps (default build/), PYTHON_EXEC a Python with PyTorch.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${BIN:-}
if [ -z "$bin" ]; then
	bin=build
	go build -o build/ ./cmd/golaunch ./bench/steps
fi
export PYTHON_EXEC=${PYTHON_EXEC:-python3}
default='--size 4000 --batch 1000 --layers 3
--size 512 --batch 64 --layers 32 --bucket-cap-mb 1'
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# measure NAME COMMAND...: appends the command's JSON object, with the name, to the log.
measure() {
	local name=$1 line
	shift
	line=$("$bin/golaunch" --nproc-per-node "$ranks" "$@" ${flags[@]+"${flags[@]}"} --dtype "$dtype" 2>"$log.err" | sed -n 's/^.*: {/{/p') ||
		{ tail -n 20 "$log.err" >&2; rm -f "$log.err"; return 1; }
	rm -f "$log.err"
	printf '{"name": "%s", "model": "%s", "type": "%s", %s\n' "$name" "${flags[*]}" "$type" "${line#\{}" >>"$log"
}

while IFS= read -r model; do
	read -ra flags <<<"$model --steps ${STEPS:-60}"
	for ranks in "${@:-1}"; do
		for type in ${TYPES:-float32 tf32 bfloat16}; do
			export GODDP_ALLOW_TF32=0
			dtype=$type
			if [ "$type" = tf32 ]; then GODDP_ALLOW_TF32=1 dtype=float32; fi
			for _ in $(seq "${ROUNDS:-3}"); do
				measure goddp "$bin/steps"
				[ "${GODDP_DEVICE:-}" = cpu ] || measure goddp-captured "$bin/steps" --captured
				for way in ${WAYS:-plain tuned captured compiled}; do
					measure "$way" bench/torch_steps.py --way "$way"
				done
			done
		done
	done
done <<<"${MODELS:-$default}"
exec "$PYTHON_EXEC" bench/steps_table.py "$log" ${JSON:+"$JSON"}
