#!/usr/bin/env bash
# Compares steps of GPT-2 (examples/gpt) with PyTorch's best (bench/torch_gpt2.py): see bench/gpt2.py, whose
# arguments it takes. BIN is a folder with the programs golaunch and gpt (default: they are built into build/),
# PYTHON_EXEC a Python with PyTorch.
#
#	bench/gpt2.sh --size 124M --batches 32 64 --json gpt2.jsonl
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -z "${BIN:-}" ]; then
	BIN=build
	go build -o build/ ./cmd/golaunch ./examples/gpt
fi
export BIN PYTHON_EXEC=${PYTHON_EXEC:-python3}
exec "$PYTHON_EXEC" bench/gpt2.py "$@"
