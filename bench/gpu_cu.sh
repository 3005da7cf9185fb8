#!/usr/bin/env bash
# Builds interop/cucomm with this machine's CUDA headers, and runs its test and its example on two
# GPUs. Prints what each rank checked, and writes everything to OUT/cu.log (default
# build/gpu/out). Exits with 1 if something is wrong.
#
#   bench/gpu_cu.sh             on a machine with CUDA, gcc, and Go or a package
#   bench/gpu_cu.sh pack FILE   on a machine with Go: packs Go and all that the module needs,
#                               about 25 MB as a .tar.xz
#   PACK=FILE bench/gpu_cu.sh   with that package
set -euo pipefail
cd "$(dirname "$0")/.."
module=interop/cucomm
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [ "${1:-}" = pack ]; then
	root=$(go env GOROOT) tools=pkg/tool/$(go env GOOS)_$(go env GOARCH)
	mkdir "$work/go"
	(cd "$root" && tar -c --exclude=testdata --exclude='*_test.go' --exclude=src/cmd \
		VERSION go.env bin/go $tools/{asm,cgo,compile,link,vet} pkg/include src) | tar -x -C "$work/go"
	(cd $module && go mod vendor -o "$work/vendor")
	tar -caf "$2" -C "$work" go vendor
	exit
fi

out=${OUT:-build/gpu/out}
mkdir -p "$out"
cuda=${CUDA_HOME:-/usr/local/cuda}
gpus=$(nvidia-smi --list-gpus 2>/dev/null | wc -l) || true
if [ "$gpus" -lt 2 ]; then
	echo "skipped: nvidia-smi lists $gpus GPUs here, and this takes 2"
	exit 0
fi
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | sort | uniq -c
grep -E '^#define CUDA_VERSION' "$cuda/include/cuda.h"
if [ -n "${PACK:-}" ]; then
	tar -xf "$PACK" -C "$work"
	export PATH=$work/go/bin:$PATH GOROOT=$work/go GOFLAGS=-mod=vendor GOTOOLCHAIN=local
	cp -r "$work/vendor" $module/vendor
	trap 'rm -rf "$work" $module/vendor' EXIT
fi
export CGO_ENABLED=1 GOCACHE=${GOCACHE:-$work/cache}
export CGO_CFLAGS="-O2 -I$PWD/$module/compat -I$cuda/include"
# The linker needs the toolkit's stub, which exists on machines without a driver, or the driver's
# library.
mkdir "$work/lib"
for lib in "$cuda/lib64/stubs/libcuda.so" /usr/lib/x86_64-linux-gnu/libcuda.so.1 /usr/lib/libcuda.so.1; do
	[ -e "$lib" ] && ln -sf "$lib" "$work/lib/libcuda.so" && break
done
export CGO_LDFLAGS=-L$work/lib
(cd $module && go test -c -o "$work/test" . && go build -o "$work/example" ./example) 2>&1 | tee "$out/cu.log"
echo "built with $(go version)"

# The loop sets the variables that a launcher sets for each rank.
timeout 120 "$work/test" -test.v 2>&1 | tee -a "$out/cu.log"
port=$((20000 + RANDOM % 12000))
pids=()
for rank in 0 1; do
	RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port timeout 60 "$work/example" >"$work/rank$rank.log" 2>&1 &
	pids+=($!)
done
for pid in "${pids[@]}"; do
	wait "$pid" || failed=1
done
cat "$work"/rank?.log | tee -a "$out/cu.log"
[ -z "${failed:-}" ] && [ "$(grep -c 'of 2: 3 ... 3$' "$out/cu.log")" = 2 ] && echo "example: ok" || { echo "example: WRONG"; exit 1; }
