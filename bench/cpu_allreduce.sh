#!/usr/bin/env bash
# Compares all-reduces on one machine without GPUs, float32 sum in place: goddp, PyTorch over Gloo,
# and OpenMPI, with one process per rank, in turn. Times are in microseconds, and each is that of one
# call among many, the largest of all ranks. The figures are medians over ROUNDS (default 3) turns of
# the programs, and so are the ratios, each of which compares times of one turn. Arguments: numbers
# of ranks (default 2 4). NETWORK says how the ranks reach each other:
#
#   one-host   the default. "alloc" is goddp with memory from ProcessGroup.Alloc, as for gradient
#              buckets, "private" with other memory. Gloo uses TCP, OpenMPI its shared memory.
#   loopback   all programs use TCP over the loopback device, as between hosts
#   RATE       all programs use TCP between network namespaces, one for each rank, each of which
#              sends at most RATE, such as 1gbit (tc's notation); "unlimited" sets no limit
#
# Over TCP, "private" is goddp without encryption (GODDP_UNPROTECTED_DATA=1), as the other programs
# are, and "encrypted" is goddp's default. PROGRAMS names the columns if not all are wanted.
#
# Needs python3-torch (PYTHON_EXEC names another interpreter). The OpenMPI column needs openmpi-bin
# and libopenmpi-dev. Namespaces need the right to make them, iproute2, and the kernel's tbf.
set -euo pipefail
cd "$(dirname "$0")/.."
network=${NETWORK:-one-host} rounds=${ROUNDS:-3}
[ $# -gt 0 ] || set -- 2 4

# The script runs itself again in namespaces of its own, with which all that it makes there ends.
if [ -z "${WORK:-}" ]; then
	WORK=$(mktemp -d)
	export WORK
	trap 'rm -rf "$WORK"' EXIT
	go build -o "$WORK" ./cmd/golaunch ./cmd/goddp
	if command -v mpicc >/dev/null; then mpicc -O2 -o "$WORK/mpi" bench/mpi_allreduce.c; fi
	case $network in
	one-host | loopback) "$0" "$@" ;;
	*)
		user=()
		[ "$(id -u)" = 0 ] || user=(--map-root-user)
		if ! reason=$(unshare "${user[@]}" --net --mount true 2>&1); then
			echo "skipped: network namespaces are not permitted here: $reason"
			exit 0
		fi
		unshare "${user[@]}" --net --mount "$0" "$@"
		;;
	esac
	exit
fi
export GODDP_DEVICE=cpu CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1 PYTHON_EXEC=${PYTHON_EXEC:-/usr/bin/python3}

# make_hosts N: makes namespaces host0, host1, ... with addresses 10.77.0.1, 10.77.0.2, ...
make_hosts() {
	ip link add switch type bridge && ip link set switch up
	for ((r = 0; r < $1; r++)); do
		ip netns add "host$r"
		ip link add name "port$r" type veth peer name eth0 netns "host$r"
		ip link set "port$r" master switch up
		ip -n "host$r" link set lo up
		ip -n "host$r" addr add "10.77.0.$((r + 1))/24" dev eth0
		ip -n "host$r" link set eth0 up
		[ "$network" = unlimited ] || tc -n "host$r" qdisc add dev eth0 root tbf rate "$network" burst 1mb latency 50ms
	done
}

case $network in
one-host | loopback) ;;
*)
	mount -t tmpfs none /run # for the names of the namespaces
	if ! reason=$(make_hosts "$(printf '%s\n' "$@" | sort -n | tail -1)" 2>&1); then
		echo "skipped: no network of namespaces with rate $network: $reason"
		exit 0
	fi
	# mpirun starts its daemon on another host with: rsh HOST COMMAND
	printf '#!/bin/sh\nhost=host$((${1##*.} - 1))\nshift\nexec ip netns exec $host sh -c "$*"\n' >"$WORK/rsh"
	chmod +x "$WORK/rsh"
	(umask 077 && head -c 32 /dev/urandom | base64 >"$WORK/token") # the job's secret
	;;
esac

# on RANKS PROGRAM...: runs the program on every rank and prints the output of rank 0.
on() {
	local ranks=$1
	shift
	case $network in
	one-host) "$WORK/golaunch" --nproc-per-node "$ranks" "$@" | sed 's/^\[default0\]: //' ;;
	loopback) "$WORK/golaunch" --nproc-per-node "$ranks" bash -c 'GODDP_HOST_ID=$RANK exec "$@"' - "$@" | sed 's/^\[default0\]: //' ;;
	*)
		local pids=() r failed=0
		for ((r = 0; r < ranks; r++)); do
			RANK=$r WORLD_SIZE=$ranks LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=10.77.0.1 MASTER_PORT=29500 GODDP_TOKEN_FILE=$WORK/token \
				GLOO_SOCKET_IFNAME=eth0 ip netns exec "host$r" "$@" >"$WORK/out$r" &
			pids+=($!)
		done
		for r in "${pids[@]}"; do wait "$r" || failed=1; done
		cat "$WORK/out0"
		return $failed
		;;
	esac
}

# mpi RANKS ARGUMENT...: the same for OpenMPI's program.
mpi() {
	local ranks=$1 run=(mpirun --allow-run-as-root --oversubscribe -n "$1") tcp=(--mca btl "tcp,self" --mca pml ob1)
	shift
	case $network in
	one-host) "${run[@]}" "$WORK/mpi" "$@" ;;
	loopback) "${run[@]}" "${tcp[@]}" --mca btl_tcp_if_include lo "$WORK/mpi" "$@" ;;
	*)
		local hosts
		hosts=$(seq -f 10.77.0.%.0f -s , "$ranks")
		ip netns exec host0 "${run[@]}" "${tcp[@]}" --host "$hosts" --mca plm_rsh_agent "$WORK/rsh" --mca btl_tcp_if_include eth0 \
			--mca oob_tcp_if_include eth0 "$WORK/mpi" "$@"
		;;
	esac
}

# times: converts goddp's lines of JSON to "bytes microseconds".
times() { sed -nE 's/.*"size":([0-9]+).*"time_us":([0-9.]+).*/\1 \2/p'; }

programs=(private encrypted gloo)
[ "$network" != one-host ] || programs=(alloc private gloo)
[ ! -x "$WORK/mpi" ] || programs+=(openmpi)
[ -z "${PROGRAMS:-}" ] || read -ra programs <<<"$PROGRAMS"

# measure PROGRAM RANKS MIN MAX ITERS: prints lines of "bytes microseconds".
measure() {
	local flags=(-b "$3" -e "$4" -f 4 -n "$5" -w 5 --repeat 3)
	case $1 in
	alloc) on "$2" "$WORK/goddp" bench all_reduce "${flags[@]}" --json | times ;;
	private) GODDP_UNPROTECTED_DATA=1 on "$2" "$WORK/goddp" bench all_reduce "${flags[@]}" --json --private | times ;;
	encrypted) on "$2" "$WORK/goddp" bench all_reduce "${flags[@]}" --json --private | times ;;
	gloo) on "$2" "$PYTHON_EXEC" bench/torch_allreduce.py "${flags[@]}" | sed '/^#/d' ;;
	openmpi) mpi "$2" "$3" "$4" 4 "$5" 5 3 ;;
	esac
}

for ranks in "$@"; do
	rm -f "$WORK/times"
	for ((round = 0; round < rounds; round++)); do
		for range in '1024 262144 100' '1048576 16777216 10' '67108864 67108864 3'; do
			for program in "${programs[@]}"; do
				# shellcheck disable=SC2086 # three arguments
				measure "$program" "$ranks" $range | sed "s/^/$program $round /" >>"$WORK/times"
			done
		done
	done
	printf '%s ranks, %s, us\n' "$ranks" "$network"
	awk -v programs="${programs[*]}" -v rounds="$rounds" '
		function median(    i, j, x) {
			for (i = 1; i < rounds; i++)
				for (j = i; j > 0 && v[j] < v[j-1]; j--) { x = v[j]; v[j] = v[j-1]; v[j-1] = x }
			return rounds % 2 ? v[(rounds-1)/2] : (v[rounds/2-1] + v[rounds/2]) / 2
		}
		{ t[$1, $3, $2] = $4; if (!($3 in seen)) { seen[$3] = 1; size[n++] = $3 } }
		END {
			np = split(programs, p, " ")
			printf "%8s", "KiB"
			for (i = 1; i <= np; i++) printf " %10s", p[i]
			for (i = 2; i <= np; i++) if (p[i] != "private") printf " %14s", p[1] "/" p[i]
			print ""
			for (k = 0; k < n; k++) {
				printf "%8d", size[k] / 1024
				for (i = 1; i <= np; i++) { for (r = 0; r < rounds; r++) v[r] = t[p[i], size[k], r]; printf " %10.1f", median() }
				for (i = 2; i <= np; i++) if (p[i] != "private") {
					for (r = 0; r < rounds; r++) v[r] = t[p[1], size[k], r] / t[p[i], size[k], r]
					printf " %14.2f", median()
				}
				print ""
			}
		}' "$WORK/times"
done
