package kernels

import (
	"io/fs"
	"math"
	"os"
	"path"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"

	"github.com/goddp/goddp/device"
)

// small is the size in bytes below which CheckMemory does not read the files in /proc and /sys, because reading
// them would take too long.
const small = 1 << 20

// CheckMemory returns a [*device.OutOfMemoryError] if the host has less than size bytes left. If a
// process used more than that, Linux would kill this process or another one. CheckMemory returns nil if
// the host does not report its memory.
func CheckMemory(size int) error {
	host := os.DirFS("/")
	if size < small || int64(size) <= read(host).free {
		return nil
	}
	debug.FreeOSMemory() // because part of the memory in use may be this process's garbage
	left := read(host)
	if int64(size) <= left.free {
		return nil
	}
	return &device.OutOfMemoryError{Device: "cpu", Asked: int64(size), InUse: left.inUse, Free: left.free}
}

// usage is the number of bytes in use and of bytes free.
type usage struct{ inUse, free int64 }

// read returns the usage of the host. If a control group has less memory left than the host, read
// returns the usage of the control group with the least memory left. The control groups are this
// process's and the groups above them. If the host does not report its memory, all memory counts as free.
func read(host fs.FS) usage {
	least := usage{free: math.MaxInt64}
	consider := func(total, free int64) {
		if free = max(free, 0); free < least.free {
			least = usage{total - free, free}
		}
	}
	mem := numbers(host, "proc/meminfo")
	if free, ok := mem["MemAvailable"]; ok {
		consider(mem["MemTotal"]+mem["SwapTotal"], free+mem["SwapFree"])
	}
	for _, g := range groups(host) {
		limit, errL := number(host, g.dir+"/"+g.limit) // the file holds "max", which number refuses, if there is no limit; version 1 holds a huge number
		current, errC := number(host, g.dir+"/"+g.current)
		if errL == nil && errC == nil && limit < unlimited {
			stat := numbers(host, g.dir+"/memory.stat")
			cache := stat[g.stat+"active_file"] + stat[g.stat+"inactive_file"] // the kernel frees the file cache when it needs memory
			consider(limit, limit-current+cache+g.swap(host, limit-current, mem["SwapFree"]))
		}
	}
	return least
}

// version describes the file names of a version of control groups.
type version struct {
	limit, current         string
	swapLimit, swapCurrent string
	stat                   string // the prefix of the counters that include the groups below
}

var (
	version1 = version{"memory.limit_in_bytes", "memory.usage_in_bytes", "memory.memsw.limit_in_bytes", "memory.memsw.usage_in_bytes", "total_"}
	version2 = version{"memory.max", "memory.current", "memory.swap.max", "memory.swap.current", ""}
)

// unlimited is a bound for limits: version 1 reports a larger number if there is no limit, and no
// host has as much memory.
const unlimited = 1 << 60

// group is a control group.
type group struct {
	version
	dir string
}

// swap returns how much of the host's swap the group may still use. The parameter left is the number
// of bytes of memory that the group has left.
func (g group) swap(host fs.FS, left, free int64) int64 {
	limit, errL := number(host, g.dir+"/"+g.swapLimit) // "max" stands for no limit
	current, errC := number(host, g.dir+"/"+g.swapCurrent)
	if errL != nil || errC != nil {
		return free
	}
	unused := limit - current
	if g.version == version1 { // version 1 limits the sum of memory and swap
		unused -= left
	}
	return max(min(unused, free), 0)
}

// groups returns this process's control groups, of either version, that may limit its memory, and
// the groups above them. In a container with version 1, the process's own group is mounted at the
// top, whatever its name is.
func groups(host fs.FS) (all []group) {
	lines, _ := fs.ReadFile(host, "proc/self/cgroup")
	for line := range strings.Lines(string(lines)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3) // number:controllers:name
		if len(fields) < 3 {
			continue
		}
		root, v := "sys/fs/cgroup", version2
		switch {
		case slices.Contains(strings.Split(fields[1], ","), "memory"):
			root, v = root+"/memory", version1
		case fields[0] != "0" || fields[1] != "":
			continue
		}
		for name := path.Clean("/" + fields[2]); name != "/"; name = path.Dir(name) {
			all = append(all, group{v, root + name})
		}
		all = append(all, group{v, root})
	}
	return all
}

// number returns the content of a file with one number.
func number(host fs.FS, name string) (int64, error) {
	text, err := fs.ReadFile(host, name)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
}

// numbers returns the values, in bytes, of a file with lines such as "MemTotal: 1024 kB" or "file
// 4096".
func numbers(host fs.FS, name string) map[string]int64 {
	text, _ := fs.ReadFile(host, name)
	values := map[string]int64{}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		n, err := strconv.ParseInt(fields[1], 10, 64)
		if err != nil {
			continue
		}
		if len(fields) > 2 && fields[2] == "kB" {
			n <<= 10
		}
		values[strings.TrimSuffix(fields[0], ":")] = n
	}
	return values
}
