// Package memcheck asks the host how much memory it has left.
package memcheck

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

// small is a size for which reading the kernel's files is not worth its time.
const small = 1 << 20

// Check returns a [*device.OutOfMemoryError] if the host has not got size bytes left:
// to use them would have the kernel kill a process, this one or another. It returns
// nil where the host does not tell.
func Check(size int) error {
	host := os.DirFS("/")
	if size < small || int64(size) <= read(host).free {
		return nil
	}
	debug.FreeOSMemory() // some of what is in use may be this process's garbage
	left := read(host)
	if int64(size) <= left.free {
		return nil
	}
	return &device.OutOfMemoryError{Device: "cpu", Asked: int64(size), InUse: left.inUse, Free: left.free}
}

// usage is how many bytes of memory are in use and free.
type usage struct{ inUse, free int64 }

// read is the usage of the host, or of the control group, this process's or one above
// it, that has less left. Without a word from the kernel everything is free.
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
		limit, errL := number(host, g.dir+"/"+g.limit) // "max" is no number, and no limit; nor is what version 1 says instead
		current, errC := number(host, g.dir+"/"+g.current)
		if errL == nil && errC == nil && limit < unlimited {
			stat := numbers(host, g.dir+"/memory.stat")
			cache := stat[g.stat+"active_file"] + stat[g.stat+"inactive_file"] // goes when memory is needed
			consider(limit, limit-current+cache+g.swap(host, limit-current, mem["SwapFree"]))
		}
	}
	return least
}

// version is what a version of control groups calls its files.
type version struct {
	limit, current         string
	swapLimit, swapCurrent string
	stat                   string // what the counts of the group and those below it begin with
}

var (
	version1 = version{"memory.limit_in_bytes", "memory.usage_in_bytes", "memory.memsw.limit_in_bytes", "memory.memsw.usage_in_bytes", "total_"}
	version2 = version{"memory.max", "memory.current", "memory.swap.max", "memory.swap.current", ""}
)

// unlimited is less than what version 1 says where there is no limit, and more than any
// host has.
const unlimited = 1 << 60

// group is a control group.
type group struct {
	version
	dir string
}

// swap is how much of the host's swap the group may still use, beside left bytes of
// memory.
func (g group) swap(host fs.FS, left, free int64) int64 {
	limit, errL := number(host, g.dir+"/"+g.swapLimit) // "max" is no limit
	current, errC := number(host, g.dir+"/"+g.swapCurrent)
	if errL != nil || errC != nil {
		return free
	}
	unused := limit - current
	if g.version == version1 { // which limits the sum of memory and swap
		unused -= left
	}
	return max(min(unused, free), 0)
}

// groups are this process's control groups, of either version, that may limit its
// memory, and those above them. In a container of version 1 its own group is what is
// mounted at the top, whatever its name.
func groups(host fs.FS) (all []group) {
	lines, _ := fs.ReadFile(host, "proc/self/cgroup")
	for line := range strings.Lines(string(lines)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3) // number, controllers, name
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

// number is what a file of nothing but a number holds.
func number(host fs.FS, name string) (int64, error) {
	text, err := fs.ReadFile(host, name)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
}

// numbers are the values of a file of lines such as "MemTotal: 1024 kB" or "file 4096",
// in bytes.
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
