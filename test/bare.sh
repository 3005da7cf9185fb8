#!/usr/bin/env bash
# Runs a command in this tree on what looks like a bare machine: a root that holds the essential packages
# of this Debian or Ubuntu, gcc, mount and Go, and nothing else; without a network, as a user without rights.
#
#   test/bare.sh go test ./...
#
# The module cache has to hold the modules (go mod download). Needs root, or namespaces for users.
set -euo pipefail
[ $# -gt 0 ] || { echo "usage: test/bare.sh COMMAND [ARG]..." >&2; exit 2; }

if [ "${BARE_INSIDE:-}" = "" ]; then
	export BARE_INSIDE=1 BARE_GOROOT=$(go env GOROOT) BARE_MODULES=$(go env GOMODCACHE) BARE_CACHE=$(go env GOCACHE) GOFLAGS=$(go env GOFLAGS)
	as_root=()
	[ "$(id -u)" = 0 ] || as_root=(--map-root-user)
	exec unshare "${as_root[@]}" --mount --net --ipc --pid --fork --kill-child "$0" "$@"
fi

tree=$PWD
mkdir -p "$BARE_CACHE"
root=$(mktemp -d)
mount -t tmpfs -o mode=755 bare "$root"

# The files of the packages and of those that they depend on.
essential=$(dpkg-query -W -f '${Essential} ${Package}\n' | sed -n 's/^yes //p')
packages=$(apt-cache depends --recurse --installed --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances \
	$essential gcc libc6-dev mount | sed -n 's/^\([a-z0-9][^: ]*\).*/\1/p' | sort -u)
for link in bin sbin lib lib64; do # the system may keep them under /usr, while packages name them without it
	if [ -L /$link ]; then
		mkdir -p "$root/$(readlink /$link)"
		ln -s "$(readlink /$link)" "$root/$link"
	fi
done
# Some of the names are of no package: those that several packages provide.
{ dpkg-query -L $packages 2>/dev/null || true; } | grep -v -e '/share/doc/' -e '/share/man/' -e '/share/locale/' | sed -n 's|^/||p' | sort -u >"$root/files"
tar -C / --no-recursion --ignore-failed-read --exclude=bin --exclude=sbin --exclude=lib --exclude=lib64 --anchored -T "$root/files" -cf - 2>/dev/null | tar -C "$root" -xf -
rm "$root/files"

# What the system adds to them, and Go.
mkdir -p "$root"/{etc,proc,dev,sys,tmp,run,home/user}
printf 'root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n' >"$root/etc/passwd"
printf 'root:x:0:\nuser:x:1000:\n' >"$root/etc/group"
printf '127.0.0.1 localhost\n::1 localhost\n' >"$root/etc/hosts"
chmod 1777 "$root/tmp"
for dir in /dev "$BARE_GOROOT" "$BARE_MODULES" "$BARE_CACHE" "$tree"; do
	mkdir -p "$root$dir"
	mount --rbind "$dir" "$root$dir"
done
mount -t proc proc "$root/proc"
{ command -v ip >/dev/null && ip link set lo up; } || { echo "bare.sh needs ip (apt-get install iproute2)" >&2; exit 1; }

cd "$root"
mkdir old
pivot_root . old
cd "$tree"
umount -l /old
export HOME=/home/user PATH=$BARE_GOROOT/bin:/usr/local/bin:/usr/bin:/bin GOPROXY=off TMPDIR=/tmp
export GOMODCACHE=$BARE_MODULES GOCACHE=$BARE_CACHE
unset BARE_INSIDE

# Nothing of what tests meet elsewhere may be here.
commands=(g++ c++ clang++ python python3 etcd srun slurmd sshd ssh nft ip git nvidia-smi mpirun node)
libraries=(libopenblas.so.0 libdnnl.so libcuda.so.1 libnccl.so.2 libcublas.so.13)
for c in "${commands[@]}"; do
	if command -v "$c"; then echo "bare.sh: $c is here" >&2; exit 1; fi
done
for l in "${libraries[@]}"; do
	if find / -xdev -name "$l*" 2>/dev/null | grep .; then echo "bare.sh: $l is here" >&2; exit 1; fi
done
if (exec 3<>/dev/tcp/1.1.1.1/53) 2>/dev/null; then echo "bare.sh: there is a network" >&2; exit 1; fi
echo "bare machine: looked for ${commands[*]} ${libraries[*]} and a network, and found none; gcc $(gcc -dumpversion), $(go version)" >&2
unshare --user --map-user=1000 --map-group=1000 "$@"
