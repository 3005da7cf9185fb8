#!/usr/bin/env bash
# Compares the work tree with an earlier commit, on the CPU: the time of a whole job (golaunch and
# two ranks of examples/toy), and of an all-reduce of 1 KiB between two ranks. Both builds run in
# alternating pairs. A result is the median of the pairs' ratios, new over old, with its 95%
# interval by order statistics, which needs no assumption about the distribution. Argument: the
# commit (default HEAD~1). PAIRS is the number of pairs (default 30).
set -euo pipefail
cd "$(dirname "$0")/.."
commit=${1:-HEAD~1} pairs=${PAIRS:-30}
work=$(mktemp -d)
trap 'git worktree remove --force "$work/tree"; rm -rf "$work"' EXIT
git worktree add -q --detach "$work/tree" "$commit"
for side in old new; do
	[ $side = new ] && tree=. || tree=$work/tree
	go build -C "$tree" -o "$work/$side/" ./cmd/golaunch ./cmd/goddp ./examples/toy
done
export GODDP_DEVICE=cpu

# start SIDE: prints the time of a whole job in milliseconds.
start() {
	local began=$EPOCHREALTIME
	"$work/$1/golaunch" --nproc-per-node 2 "$work/$1/toy" >"$work/out" 2>&1
	awk -v a="$began" -v b="$EPOCHREALTIME" 'BEGIN {print 1000 * (b - a)}'
}

# reduce SIDE: prints the time of an all-reduce in microseconds.
reduce() {
	"$work/$1/golaunch" --nproc-per-node 2 "$work/$1/goddp" bench all_reduce -b 1K -e 1K -n 20000 --repeat 3 --json 2>"$work/out" |
		sed -nE 's/.*"time_us":([0-9.]+).*/\1/p'
}

# compare NAME FUNCTION: runs the pairs and prints the result. The side that runs first alternates.
compare() {
	for side in old new; do "$2" $side >/dev/null; done
	for ((i = 0; i < pairs; i++)); do
		if ((i % 2)); then a=$("$2" old) b=$("$2" new); else b=$("$2" new) a=$("$2" old); fi
		echo "$a $b $(awk -v a="$a" -v b="$b" 'BEGIN {print b / a}')"
	done >"$work/pairs"
	for column in 1 2 3; do cut -d' ' -f$column "$work/pairs" | sort -g >"$work/sorted.$column"; done
	# With 95% probability the median lies between the order statistics n/2 -+ 0.98 sqrt(n).
	paste -d' ' "$work"/sorted.{1,2,3} | awk -v name="$1" '
		{old[NR] = $1; new[NR] = $2; ratio[NR] = $3}
		function at(x) {return x < 1 ? 1 : x > NR ? NR : x}
		function median(v) {return (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2}
		END {
			half = 0.98 * sqrt(NR)
			printf "%-28s %10.2f %10.2f %8.3f  [%.3f, %.3f]\n", name, median(old), median(new), median(ratio),
				ratio[at(int(NR / 2 - half) + 1)], ratio[at(int(NR / 2 + half) + 1)]
		}'
}

printf '%-28s %10s %10s %8s  %s\n' "$pairs pairs" "old" "new" "new/old" "95% interval"
compare "toy, 2 ranks, ms" start
compare "all-reduce 1 KiB, us" reduce
