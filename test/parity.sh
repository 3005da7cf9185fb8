#!/usr/bin/env bash
# Compares goddp with PyTorch DDP: the same weights, samples and number of ranks, with limits for
# gradients, losses and parameters (test/parity). Arguments: numbers of ranks (default 2). LARGE=1
# adds a network of three layers 4000 wide, in float32 and, on GPUs, in TF32. BIN is the folder of
# golaunch and parity; without it they are built into build/. PYTHON_EXEC is a Python with PyTorch.
# Exits with 1 if a limit is missed.
set -uo pipefail
cd "$(dirname "$0")/.."
if [ -z "${BIN:-}" ]; then
	BIN=build
	go build -o build/ ./cmd/golaunch ./test/parity || exit
fi
for python in ${PYTHON_EXEC:-python3 /usr/bin/python3}; do
	"$python" -c 'import torch; print("PyTorch", torch.__version__)' 2>/dev/null && export PYTHON_EXEC=$python && break
done || { echo 'found no Python with PyTorch: PYTHON_EXEC may name one' >&2 && exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# compare RANKS [FLAG]: trains with PyTorch, then with goddp, and prints the table without the prefix
# of rank 0's lines.
compare() {
	rm -f "$work"/*
	"$BIN/golaunch" --nproc-per-node "$1" test/parity/torch_parity.py --out "$work" "${@:2}" &&
		"$BIN/golaunch" --nproc-per-node "$1" "$BIN/parity" "$work"/*.safetensors | sed 's/^\[default0\]: //' || failed=1
}

for ranks in "${@:-2}"; do
	compare "$ranks"
	if [ "${LARGE:-0}" = 1 ]; then
		compare "$ranks" --large
		if nvidia-smi --list-gpus >/dev/null 2>&1; then
			GODDP_ALLOW_TF32=1 compare "$ranks" --large
		fi
	fi
done
exit $failed
