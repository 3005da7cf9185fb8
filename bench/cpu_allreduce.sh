#!/usr/bin/env bash
# Compares all-reduces on one machine without GPUs, float32 sum in place: goddp, PyTorch over Gloo,
# and OpenMPI, with one process per rank, in turn. Times are in microseconds. "alloc" is memory from
# ProcessGroup.Alloc, as for gradient buckets, "private" is other memory, and "tcp" is the transport
# between hosts. A time is that of one call among many: the median of REPEAT (default 7)
# measurements, the largest of all ranks. Arguments: numbers of ranks (default 2 4). Needs
# python3-torch (PYTHON_EXEC names another interpreter). The OpenMPI column needs openmpi-bin and
# libopenmpi-dev.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
go build -o "$work" ./cmd/golaunch ./cmd/goddp
if command -v mpicc >/dev/null; then mpicc -O2 -o "$work/mpi" bench/mpi_allreduce.c; fi
export GODDP_DEVICE=cpu CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1 PYTHON_EXEC=${PYTHON_EXEC:-/usr/bin/python3}
repeat=${REPEAT:-7} warmup=5

# on RANKS PROGRAM...: runs the program and prints the output of rank 0.
on() { "$work/golaunch" --nproc-per-node "$@" | sed 's/^\[default0\]: //'; }

# times: converts goddp's lines of JSON to "bytes microseconds".
times() { sed -nE 's/.*"size":([0-9]+).*"time_us":([0-9.]+).*/\1 \2/p'; }

[ $# -gt 0 ] || set -- 2 4
for ranks in "$@"; do
	rm -f "$work"/*.txt
	for range in '1024 262144 200' '1048576 67108864 10'; do
		read -r least most iters <<<"$range"
		flags=(-b "$least" -e "$most" -f 4 -n "$iters" -w $warmup --repeat "$repeat")
		ours=("$work/goddp" bench all_reduce "${flags[@]}" --json)
		on "$ranks" "${ours[@]}" | times >>"$work/alloc.txt"
		on "$ranks" "${ours[@]}" --private | times >>"$work/private.txt"
		on "$ranks" bash -c 'GODDP_HOST_ID=$RANK exec "$@"' - "${ours[@]}" --private | times >>"$work/tcp.txt"
		on "$ranks" bench/torch_allreduce.py "${flags[@]}" >>"$work/gloo.txt"
		if [ -x "$work/mpi" ]; then
			mpirun --allow-run-as-root --oversubscribe -n "$ranks" "$work/mpi" "$least" "$most" 4 "$iters" $warmup "$repeat" >>"$work/openmpi.txt"
		fi
	done
	sed -i '/^#/d' "$work/gloo.txt"
	[ -e "$work/openmpi.txt" ] || sed 's/ .*/ -/' "$work/gloo.txt" >"$work/openmpi.txt"
	printf '%s ranks, us\n%8s %10s %10s %10s %10s %10s %12s %14s\n' "$ranks" KiB alloc private tcp gloo openmpi alloc/gloo alloc/openmpi
	paste -d' ' "$work"/{alloc,private,tcp,gloo,openmpi}.txt | awk '{
		printf "%8d %10.1f %10.1f %10.1f %10.1f %10s %12.3f %14s\n", $1 / 1024, $2, $4, $6, $8, $10, $2 / $8, ($10 > 0 ? sprintf("%.2f", $2 / $10) : "-")
	}'
done
