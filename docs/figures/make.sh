#!/usr/bin/env bash
# Draws the README's pictures: a step of examples/mlp on two ranks of this machine, and
# the ratios of docs/figures/ratios.csv.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
go run ./cmd/golaunch --nproc-per-node 2 ./examples/mlp --size 1024 --batch 64 --layers 6 --steps 30 --bucket-cap-mb 4 --trace "$work/trace.json"
go run ./cmd/goddp trace "$work"/trace*.json --svg docs/figures/overlap.svg
go run ./bench/figures docs/figures/ratios.csv docs/figures/ratios.svg
