#!/usr/bin/env bash
# Compares steps of ResNet-50 on one GPU, batch 256, images of 224 × 224, bfloat16, channels last: examples/resnet,
# uncaptured and captured, and PyTorch eager and compiled, with autocast and with parameters in bfloat16
# (bench/torch_resnet.py). All train on one batch from the same parameters, ROUNDS times in turn (default 3). Prints
# medians of a step in milliseconds, the ratio to PyTorch's best, and the largest of all rounds of: the peak of
# memory, how far the first losses are from those of PyTorch with autocast in the same round, and the warm-up. Fails
# if losses differ by more than 2 %. Further arguments go to all programs, such as --batch 128. BIN is the folder of
# resnet (default build/), PYTHON_EXEC a Python with PyTorch.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${BIN:-}
if [ -z "$bin" ]; then
	bin=build
	go build -o build/ ./examples/resnet
fi
python=${PYTHON_EXEC:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# measure NAME COMMAND...: appends the command's JSON object, with the name, to the log.
measure() {
	local name=$1 line
	shift
	line=$("$@" 2>"$work/err" | grep '^{') || { tail -n 20 "$work/err" >&2; return 1; }
	printf '{"name": "%s", %s\n' "$name" "${line#\{}" >>"$work/log"
}

shared=(--steps "${STEPS:-40}" --warmup 12 --lr 0.02)
torch=("$python" bench/torch_resnet.py "${shared[@]}" "$@")
goddp=("$bin/resnet" "${shared[@]}" --batch 256 --init "$work/initial.safetensors" --batch-file "$work/images.safetensors" --dtype bf16 "$@")
for round in $(seq "${ROUNDS:-3}"); do
	if [ "$round" = 1 ]; then
		measure 'PyTorch eager, autocast' "${torch[@]}" --write "$work"
	else
		measure 'PyTorch eager, autocast' "${torch[@]}"
	fi
	measure 'goddp' "${goddp[@]}"
	measure 'PyTorch compiled, autocast' "${torch[@]}" --compile
	measure 'goddp, captured' "${goddp[@]}" --captured
	measure 'PyTorch eager, bfloat16' "${torch[@]}" --dtype bf16
	measure 'PyTorch compiled, bfloat16' "${torch[@]}" --dtype bf16 --compile
done
"$python" - "$work/log" <<'EOF'
import json, statistics, sys
runs = {}
for line in open(sys.argv[1]):
    r = json.loads(line)
    runs.setdefault(r["name"], []).append(r)
step = {n: statistics.median(r["step_ms"] for r in rs) for n, rs in runs.items()}
best = min(v for n, v in step.items() if n.startswith("PyTorch"))
peers = runs["PyTorch eager, autocast"]
agree = True
print("| program | ms a step | images/s | step / PyTorch's best | peak, MiB | first 5 losses, relative error | warm after, s |")
print("|---|---|---|---|---|---|---|")
for n, rs in runs.items():
    off = [abs(a - b) / b for r, peer in zip(rs, peers) for a, b in zip(r["losses"][:5], peer["losses"][:5])]
    agree &= all(o <= 0.02 for o in off)  # a NaN does not agree
    rate, peak, warm = statistics.median(r["images_per_s"] for r in rs), max(r["peak_mib"] for r in rs), max(r["warmup_s"] for r in rs)
    print(f"| {n} | {step[n]:.2f} | {rate:.0f} | {step[n] / best:.3f} | {peak:.0f} | {max(off):.1e} | {warm:.1f} |")
sys.exit(None if agree else "the programs train different losses")
EOF
