#!/usr/bin/env bash
# Compares all-reduces on GPUs, float32 sum in place, 1 KiB to 1 GiB: NCCL called from C, goddp and
# PyTorch, with one process per rank, in turn. Prints microseconds, and whether goddp keeps its
# limits. A time is that of one call among many: the median of REPEAT (default 7) measurements, the
# largest of all ranks. Up to 256 KiB the host's time dominates, and on a virtual machine it can
# differ by half from one process to the next. So up to 1 MiB each program runs ROUNDS times
# (default 5), in turn, and the median counts. Arguments: numbers of ranks (default 2). BIN is the
# folder of golaunch and goddp (default build/gpu; make test-gpu), PYTHON_EXEC a Python with
# PyTorch. Needs nvcc and NCCL's header. Exits with 1 if a limit is missed.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/.."
bin=${BIN:-build/gpu}
iters=100 warmup=20 repeat=${REPEAT:-7}
export PYTHON_EXEC=${PYTHON_EXEC:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
nvcc -O2 -o "$work/nccl_allreduce" bench/nccl_allreduce.c -lnccl
missed=0

# on RANKS PROGRAM...: runs the program and prints the output of rank 0.
on() { "$bin/golaunch" --nproc-per-node "$@" | sed 's/^\[default0\]: //'; }

# measure RANKS LEAST MOST: appends lines of "bytes us" to each program's file.
measure() {
	rm -f "$work/id"
	on "$1" "$work/nccl_allreduce" "$work/id" "$2" "$3" 4 $iters $warmup "$repeat" >>"$work/c.txt"
	local flags=(-b "$2" -e "$3" -f 4 -n $iters -w $warmup --repeat "$repeat")
	on "$1" "$bin/goddp" bench all_reduce "${flags[@]}" --json |
		sed -nE 's/.*"size":([0-9]+).*"time_us":([0-9.]+).*/\1 \2/p' >>"$work/goddp.txt"
	on "$1" bench/torch_allreduce.py "${flags[@]}" >>"$work/torch.txt"
}

# medians FILE: prints the median time of each size, and the number of times.
medians() {
	sed '/^#/d' "$1" | sort -k1,1n -k2,2n |
		awk '$1 != size && n {print size, t[int((n + 1) / 2)], n; n = 0} {size = $1; t[++n] = $2} END {print size, t[int((n + 1) / 2)], n}'
}

for ranks in "${@:-2}"; do
	rm -f "$work"/*.txt
	for ((round = 0; round < ${ROUNDS:-5}; round++)); do measure "$ranks" 1024 1048576; done
	measure "$ranks" 4194304 1073741824
	printf '%s ranks, us' "$ranks"
	grep -h '^#' "$work/c.txt" "$work/torch.txt" | sort -u | sed 's/^#/;/' | tr -d '\n'
	printf '\n%10s %9s %9s %9s %8s %14s   %s\n' bytes C goddp PyTorch goddp/C goddp/PyTorch limits
	paste -d' ' <(medians "$work/c.txt") <(medians "$work/goddp.txt") <(medians "$work/torch.txt") | awk '
		function held(limit, name) {
			if ($5 > limit) missed = 1
			return sprintf("%s %s", name, $5 <= limit ? "ok" : "MISSED")
		}
		NF != 9 || $1 != $4 || $1 != $7 || $3 != $6 || $3 != $9 { print "the programs measured different sizes: " $0; missed = 1; next }
		{
			limits = $1 > 1048576 ? held(1.05 * $2, "1.05 C") : held($2 + 2, "C + 2 us")
			if ($1 <= 16384) limits = limits ", " held(0.6 * $8, "0.6 PyTorch")
			else if ($1 <= 262144) limits = limits ", " held(0.75 * $8, "0.75 PyTorch")
			printf "%10d %9.2f %9.2f %9.2f %8.2f %14.2f   %s\n", $1, $2, $5, $8, $5 / $2, $5 / $8, limits
		}
		END { exit missed }' || missed=1
	for program in c goddp torch; do
		printf '1 KiB at each start, %s: %s\n' $program "$(sed -n 's/^1024 //p' "$work/$program.txt" | paste -sd' ')"
	done
done
exit $missed
