// Package hostmem asks the host how much memory it has left.
package hostmem

import (
	"io/fs"
	"math"
	"os"
	"path"
	"runtime/debug"
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
	for _, dir := range groups(host) {
		limit, errL := number(host, dir+"/memory.max") // "max" is no number, and no limit
		current, errC := number(host, dir+"/memory.current")
		if errL == nil && errC == nil {
			stat := numbers(host, dir+"/memory.stat")
			cache := stat["active_file"] + stat["inactive_file"] // goes when memory is needed
			consider(limit, limit-current+cache+swap(host, dir, mem["SwapFree"]))
		}
	}
	return least
}

// swap is how much of the host's swap the group of a folder may still use.
func swap(host fs.FS, dir string, free int64) int64 {
	limit, err := number(host, dir+"/memory.swap.max") // "max" is no limit
	current, unknown := number(host, dir+"/memory.swap.current")
	if err != nil || unknown != nil {
		return free
	}
	return max(min(limit-current, free), 0)
}

// groups are the folders of this process's control group of version 2 and of those
// above it. The limits of version 1 are not read.
func groups(host fs.FS) (dirs []string) {
	const root = "sys/fs/cgroup"
	lines, _ := fs.ReadFile(host, "proc/self/cgroup")
	for line := range strings.Lines(string(lines)) {
		group, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !ok {
			continue
		}
		for group = path.Clean("/" + group); group != "/"; group = path.Dir(group) {
			dirs = append(dirs, root+group)
		}
		dirs = append(dirs, root)
	}
	return dirs
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
