#!/usr/bin/env bash
# All-reduce of comm/host on one machine against PyTorch over Gloo and against
# OpenMPI, one process per rank, in turn: medians in microseconds. "alloc" is
# memory from ProcessGroup.Alloc, as gradient buckets are. Needs python3-torch
# and, for its column, openmpi-bin and libopenmpi-dev.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
go build -o "$work/golaunch" ./cmd/golaunch
go test -c -o "$work/host.test" ./comm/host
if command -v mpicc >/dev/null; then mpicc -O2 -o "$work/mpi" bench/mpi_allreduce.c; fi
export OMP_NUM_THREADS=1 PYTHON_EXEC=${PYTHON_EXEC:-/usr/bin/python3}

# ours WAY RANKS: "KiB microseconds" lines.
ours() {
	"$work/host.test" -test.run '^$' -test.benchtime 1x -test.bench "AllReduce/ranks=$2/$1/" |
		sed -nE 's|^.*/([0-9]+)KiB.*[[:space:]]([0-9.]+) µs.*|\1 \2|p'
}

for ranks in 2 4; do
	ours shm-shared $ranks >"$work/alloc"
	ours shm-private $ranks >"$work/private"
	ours tcp-private $ranks >"$work/tcp"
	"$work/golaunch" --nproc-per-node $ranks bench/gloo_allreduce.py | sed 's/.*: //' >"$work/gloo"
	if [ -x "$work/mpi" ]; then
		mpirun --allow-run-as-root --oversubscribe -n $ranks "$work/mpi" >"$work/openmpi"
	else
		sed 's/ .*/ -/' "$work/gloo" >"$work/openmpi"
	fi
	printf '%d ranks, us\n%8s %10s %10s %10s %10s %10s %12s %14s\n' $ranks KiB alloc private tcp gloo openmpi alloc/gloo alloc/openmpi
	paste -d' ' "$work"/{alloc,private,tcp,gloo,openmpi} | awk '{
		printf "%8s %10s %10s %10s %10s %10s %12.3f %14s\n", $1, $2, $4, $6, $8, $10, $2 / $8, ($10 > 0 ? sprintf("%.2f", $2 / $10) : "-")
	}'
done
