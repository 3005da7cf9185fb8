package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goddp/goddp/internal/dl"
	"github.com/goddp/goddp/internal/jobenv"
	"github.com/goddp/goddp/internal/nvml"
	"github.com/goddp/goddp/internal/wire"
)

// sharedMemory is the file system of NCCL's shared memory.
const sharedMemory = "/dev/shm"

// Options say what Probe reads.
type Options struct {
	Rank, LocalRank int
	// HostsStore says that this rank listens on MASTER_PORT.
	HostsStore bool
}

// Probe reads the facts of this rank and its host that need no other rank.
func Probe(o Options) Facts {
	f := Facts{Rank: o.Rank, Node: o.Rank - o.LocalRank, Environment: map[string]string{}, OpenFiles: wire.FileLimit(), IsRoot: os.Geteuid() == 0}
	f.Host, _ = os.Hostname()
	for _, setting := range os.Environ() {
		name, value, _ := strings.Cut(setting, "=")
		for _, prefix := range []string{"NCCL_", "GLOO_", "MASTER_", jobenv.DeviceVar, jobenv.GPUsVar} {
			if strings.HasPrefix(name, prefix) {
				f.Environment[name] = value
			}
		}
	}
	f.LockedMemory = lockedMemory()
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	f.HostID = cmp.Or(os.Getenv("NCCL_HOSTID"), strings.TrimSpace(string(boot)))
	f.readLibraries(o.LocalRank)
	if o.HostsStore {
		f.PortError = portError(f.Environment[jobenv.MasterPortVar])
	}
	if f.Rank != f.Node {
		return f
	}
	var fs unix.Statfs_t
	if unix.Statfs(sharedMemory, &fs) == nil {
		f.SharedMemory = Space{uint64(fs.Blocks) * uint64(fs.Bsize), uint64(fs.Bavail) * uint64(fs.Bsize)}
	}
	f.Interfaces = interfaces()
	f.RDMAAdapters = names("/sys/class/infiniband/*")
	f.NUMANodes = len(names("/sys/devices/system/node/node[0-9]*"))
	if f.GPU == "" {
		return f
	}
	host, err := nvml.Read()
	if err == nil && slices.ContainsFunc(host.GPUs, func(g nvml.GPU) bool { return g.Processes > 0 }) {
		time.Sleep(utilizationTime)
		host, err = nvml.Read()
	}
	f.NVML = host
	var missing *dl.NotFoundError
	switch {
	case err == nil:
		f.Libraries = append(f.Libraries, Library{Name: "driver", Path: "NVML", Version: host.Driver})
	case !errors.As(err, &missing):
		f.Libraries = append(f.Libraries, Library{Name: "NVML", Error: err.Error()})
	}
	return f
}

// utilizationTime is longer than the second for which NVML states how busy a GPU was. So after utilizationTime, NVML
// shows also a process that has just begun.
const utilizationTime = 1100 * time.Millisecond

// lockedMemory returns how much memory this process may lock, in bytes.
func lockedMemory() uint64 {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit) != nil {
		return unix.RLIM_INFINITY
	}
	return limit.Cur
}

// interfaces returns the host's network interfaces.
func interfaces() (found []Interface) {
	all, err := net.Interfaces()
	if err != nil {
		return nil
	}
	for _, i := range all {
		n := Interface{
			Name: i.Name, MTU: i.MTU, Speed: interfaceSpeed(i.Name), IsLoopback: i.Flags&net.FlagLoopback != 0,
			IsUp: i.Flags&net.FlagUp != 0 && i.Flags&net.FlagRunning != 0,
		}
		addresses, _ := i.Addrs()
		for _, a := range addresses {
			n.Addresses = append(n.Addresses, a.String())
		}
		found = append(found, n)
	}
	return found
}

// portError returns why nothing can listen on a port; empty if something can, or if port is empty.
func portError(port string) string {
	if port == "" {
		return ""
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return fmt.Sprintf("MASTER_PORT is %q, want a number from 1 to 65535", port)
	}
	listener, err := net.Listen("tcp", ":"+port)
	if err != nil {
		return err.Error()
	}
	listener.Close()
	return ""
}

// names returns the last parts of the paths that match a pattern.
func names(pattern string) (names []string) {
	paths, _ := filepath.Glob(pattern) // the pattern is valid
	for _, p := range paths {
		names = append(names, filepath.Base(p))
	}
	slices.Sort(names)
	return names
}

// ReadClocks reads the GPUs' clocks again, after a measurement has heated the GPUs. It adds the reasons for which
// they are low.
func (f *Facts) ReadClocks() {
	if f.NVML == nil {
		return
	}
	now, err := nvml.Read()
	if err != nil || len(now.GPUs) != len(f.NVML.GPUs) {
		return
	}
	for i, g := range now.GPUs {
		f.NVML.GPUs[i].Clock = g.Clock
		if g.Slowdowns.Faults() != "" {
			f.NVML.GPUs[i].Slowdowns = g.Slowdowns
		}
	}
}
