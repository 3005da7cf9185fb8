#!/usr/bin/env bash
# Runs every fuzz target of the tree. Prints a line for each: the number of inputs that ran, the
# number of new ones, and whether one failed.
#
#	test/fuzz.sh                        runs the targets with Go
#	BIN=build/fuzz test/fuzz.sh build   only builds them, with this script, into a folder that
#	                                    can be carried to a machine without Go
#	BIN=build/fuzz test/fuzz.sh         runs the targets in that folder
#
# FUZZTIME (default 10m) is the time of each target, PARALLEL (default: the number of cores) the
# number of targets that run at a time. Full output and inputs that fail go to OUT (default
# build/fuzz/out). Exits with 1 if a target fails or cannot fuzz.
set -uo pipefail
cd "$(dirname "$0")/.."
bin=${BIN:-}
out=$(realpath -m "${OUT:-build/fuzz/out}")
fuzztime=${FUZZTIME:-10m} parallel=${PARALLEL:-$(nproc)}

# list prints the targets, one a line: package and name.
list() {
	grep -rHo --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*(' . | sed -E 's|^\./(.*)/[^/]*:func (Fuzz[A-Za-z0-9_]*)\(|\1 \2|' | sort -u
}

if [ "${1:-}" = build ]; then
	: "${BIN:?is the folder to build into}"
	rm -rf "$bin"
	mkdir -p "$bin"
	list >"$bin/targets"
	for pkg in $(cut -d' ' -f1 "$bin/targets" | uniq); do
		# Without -fuzz the test binary has no coverage counters and finds no new paths.
		go test -c -fuzz=. -o "$bin/$pkg/fuzz.test" "./$pkg" || exit 1
		[ ! -d "$pkg/testdata" ] || cp -r "$pkg/testdata" "$bin/$pkg/"
	done
	cp "$0" "$bin/fuzz.sh"
	wc -l "$bin/targets"
	exit 0
fi

# one PACKAGE NAME: fuzzes a target.
one() {
	local pkg=$1 name=$2 log=$out/${1//\//_}.$2.log cache=$out/cache/$1 verdict=ok
	mkdir -p "$cache"
	if [ -n "$bin" ]; then
		(cd "$bin/$pkg" && ./fuzz.test -test.run xxx -test.fuzz "^$name\$" -test.fuzztime "$fuzztime" -test.fuzzcachedir "$cache" -test.fuzzminimizetime 5s -test.parallel 1) >"$log" 2>&1
	else
		go test "./$pkg" -run xxx -fuzz "^$name\$" -fuzztime "$fuzztime" -fuzzminimizetime 5s -parallel 1 >"$log" 2>&1
	fi || verdict=FAILED
	local last=$(grep -oE 'execs: [0-9]+ .*new interesting: [0-9]+' "$log" | tail -n 1)
	[ -n "$last" ] || verdict=FAILED
	printf '%-34s %-18s %12s inputs %6s new  %s\n' "$pkg" "$name" "$(grep -oE '[0-9]+' <<<"$last" | head -n 1)" "${last##* }" $verdict
	[ $verdict = ok ] || { tail -n 20 "$log" && return 1; }
}

mkdir -p "$out"
[ -z "$bin" ] || bin=$(realpath "$bin")
export bin out fuzztime
export -f one
if [ -n "$bin" ]; then cat "$bin/targets"; else list; fi | xargs -P "$parallel" -L 1 bash -c 'one "$@"' one
