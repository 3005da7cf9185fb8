#!/usr/bin/env bash
# Compares training on several ranks with a single process, in every way that package ddp offers
# (test/matrix). Arguments: numbers of ranks (default 2). BIN is the folder of golaunch and matrix;
# without it they are built into build/. Exits with 1 if a limit is missed.
set -uo pipefail
cd "$(dirname "$0")/.."
if [ -z "${BIN:-}" ]; then
	BIN=build
	go build -o build/ ./cmd/golaunch ./test/matrix || exit
fi
failed=0
for ranks in "${@:-2}"; do
	"$BIN/golaunch" --nproc-per-node "$ranks" "$BIN/matrix" | sed 's/^\[default0\]: //' || failed=1
done
exit $failed
