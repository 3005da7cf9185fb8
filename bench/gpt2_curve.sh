#!/usr/bin/env bash
# Trains GPT-2 in goddp and in PyTorch on the same tokens in the same order, from the same weights, and compares
# the losses. The text is this machine's Python sources (bench/gpt2_text.py), and no token comes twice. Prints the
# validation losses, and fails if goddp's last one is more than 0.01 from the median of PyTorch's. The folder OUT
# (default: build/gpt2_curve) gets the JSON lines of all runs, their table and their curves against steps and seconds.
#
# STEPS (500) steps of BATCH (64) sequences, after WARMUP (50) of which the learning rate LR (2e-4) goes down a cosine
# to a tenth; a validation of the same VALIDATE (20) batches after each EVERY (50) steps. MEGABYTES (100) of text.
# SIZE is a size of GPT-2 (124M), or tiny. TORCH holds flags of bench/torch_gpt2.py (--compile --attention cudnn),
# GODDP those of examples/gpt (--captured --dtype bf16). PyTorch trains RUNS (3) times, at least once: its attention
# adds gradients in any order, so that two of its runs end apart. The higher the rate, the further: three runs with
# 2e-4 ended 0.0022 apart, eight with 6e-4, GPT-2's rate for batches of half a million tokens, 0.045. goddp repeats
# its own run bit by bit. With BESIDE=1 all runs train at the same time, goddp on the first GPU
# and PyTorch on the RUNS next ones. BIN is a folder with the programs goddp and gpt (default: they are built into
# build/), PYTHON_EXEC a Python with PyTorch.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -z "${BIN:-}" ]; then
	BIN=build
	go build -o build/ ./cmd/goddp ./examples/gpt
fi
python=${PYTHON_EXEC:-python3}
out=${OUT:-build/gpt2_curve}
steps=${STEPS:-500} batch=${BATCH:-64} size=${SIZE:-124M} validate=${VALIDATE:-20}
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

model=(--size "$size") shape=(12 768 1024) context=1024
case $size in
355M) shape=(24 1024 1024) ;;
774M) shape=(36 1280 1024) ;;
1558M) shape=(48 1600 1024) ;;
tiny)
	model=(--layers 2 --heads 2 --embed 64 --context 64) shape=(2 64 64) context=64
	;;
esac
"$python" bench/gpt2_inputs.py weights "$work/weights" "${shape[@]}"
"$python" bench/gpt2_text.py "$work/text" "${MEGABYTES:-100}"
"$BIN/goddp" tokens "$work/text" -o "$work/shards" --val-size $((validate * batch * context + 1)) --shard-size 1000000000
tokens=$((($(stat -c %s "$work/shards/train_000001.bin") - 1024) / 2))
if ((tokens <= steps * batch * context)); then
	echo "$tokens tokens to train on, want more than $((steps * batch * context)): increase MEGABYTES" >&2
	exit 1
fi
read -r -a goddp <<<"${GODDP---captured --dtype bf16}"
read -r -a torch <<<"${TORCH---compile --attention cudnn}"
common=("${model[@]}" --tokens "$work/shards/train_*.bin" --validate "$work/shards/val_*.bin" --init "$work/weights"
	--steps "$steps" --batch "$batch" --warmup "${WARMUP:-50}" --lr "${LR:-2e-4}"
	--validate-every "${EVERY:-50}" --validate-batches "$validate")
rm -f "$out"/{goddp,pytorch*}.jsonl
# failed NAME: shows the end of a run's output, and ends.
failed() {
	echo "$1 failed:" >&2
	tail "$work/$1.log" >&2
	exit 1
}
# train GPU NAME COMMAND...: trains and keeps the log; with BESIDE, on a GPU and without waiting.
logs=() running=()
train() {
	local gpu=$1 name=$2
	shift 2
	logs+=("$out/$name.jsonl")
	set -- "$@" --log "$out/$name.jsonl"
	if [ -n "${BESIDE:-}" ]; then
		(CUDA_VISIBLE_DEVICES=$gpu "$@" >"$work/$name.log" 2>&1 || failed "$name") &
		running+=($!)
	else
		"$@" >"$work/$name.log" 2>&1 || failed "$name"
	fi
}
peer=("$python" bench/torch_gpt2.py "${common[@]}")
ours=("$BIN/gpt" "${common[@]}" "${goddp[@]}" --in-order --sample 0)
train 0 goddp "${ours[@]}"
for run in $(seq "${RUNS:-3}"); do
	train "$run" "pytorch$run" "${peer[@]}" "${torch[@]}"
done
status=0
for process in "${running[@]}"; do wait "$process" || status=1; done
[ $status = 0 ] || exit 1
"$BIN/goddp" plot "${logs[@]}" -y loss,validation_loss -x steps,seconds -o "$out/curve.svg"
echo "$steps steps of $((batch * context)) tokens; their logs and curves are in $out"
"$python" bench/gpt2_curve.py "${logs[@]}" | tee "$out/table.md"
