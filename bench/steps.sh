#!/usr/bin/env bash
# Compares training steps in a row (bench/steps), uncaptured and captured, with PyTorch DDP's as users
# write them, tuned, captured in a CUDA graph and compiled (bench/torch_steps.py). golaunch starts all in
# turn, ROUNDS times (default 3); a process of PyTorch measures all types and ways. Prints medians of the
# mean milliseconds of a step, its communication that no computation hides, the peak of memory, and the
# ratio of goddp's best to PyTorch's best; fails if their losses differ. Arguments: numbers of ranks
# (default 1). MODELS holds the models' flags, one model a line; TYPES the element types; WAYS PyTorch's
# ways. With ZERO=1 captured steps also divide the updates among the ranks (ZeRO-1). The medians and losses are
# also written as JSON lines to the file JSON (default: nowhere). BIN is the folder of golaunch and steps
# (default build/), PYTHON_EXEC a Python with PyTorch.
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
types=${TYPES:-float32 tf32 bfloat16}
ways=${WAYS-plain tuned captured compiled}
log=$(mktemp)
errors=$(mktemp)
trap 'rm -f "$log" "$errors"' EXIT

# measure COMMAND...: appends the command's JSON objects, with the model, to the log.
measure() {
	"$bin/golaunch" --nproc-per-node "$ranks" "$@" $model --steps "${STEPS:-60}" 2>"$errors" |
		sed -n "s/^.*: {\"name\"/{\"model\": \"$model\", \"name\"/p" >>"$log" || { tail -n 20 "$errors" >&2; return 1; }
}

while IFS= read -r model; do
	for ranks in "${@:-1}"; do
		for _ in $(seq "${ROUNDS:-3}"); do
			for type in $types; do
				measure "$bin/steps" --type "$type"
				[ "${GODDP_DEVICE:-}" = cpu ] || measure "$bin/steps" --type "$type" --captured
				[ "${GODDP_DEVICE:-}" = cpu ] || [ -z "${ZERO:-}" ] || measure "$bin/steps" --type "$type" --captured --stage 1
			done
			[ -z "$ways" ] || measure bench/torch_steps.py --types $types --ways $ways
		done
	done
done <<<"${MODELS:-$default}"
exec "$PYTHON_EXEC" bench/steps_table.py "$log" ${JSON:+"$JSON"}
