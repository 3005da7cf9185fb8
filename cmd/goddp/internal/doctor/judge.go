package doctor

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/goddp/goddp/internal/jobenv"
)

// check is one check: a pure function of the facts of all ranks. good is the report's line if there is
// no finding. A check that does not apply to the job returns neither.
type check struct {
	name  string // the check's name, and the title of its section in docs/doctor.md
	judge func(ranks []Facts) (good string, findings []Finding)
}

// checks are all checks, in the order of the report.
var checks = []check{
	{"group", checkGroup},
	{"libraries", checkLibraries},
	{"shared-memory", checkSharedMemory},
	{"open-files", checkOpenFiles},
	{"locked-memory", checkLockedMemory},
	{"interfaces", checkInterfaces},
	{"mtu", checkMTU},
	{"port", checkPort},
	{"clocks", checkClocks},
	{"numa", checkNUMA},
	{"gpus", checkGPUs},
	{"gpu-sharing", checkSharing},
	{"gpu-speed", checkSpeed},
	{"pairs", checkPairs},
	{"all-reduce", checkAllReduce},
	{"nccl-network", checkNetwork},
	{"nccl-local", checkLocal},
	{"nccl-rdma", checkRDMA},
	{"nccl-rings", checkRings},
}

// Judge applies all checks to the facts of all ranks, which are sorted by rank.
func Judge(ranks []Facts) Report {
	r := Report{Ranks: len(ranks), Hosts: []string{}}
	for _, f := range hosts(ranks) {
		r.Hosts = append(r.Hosts, f.Host)
	}
	for _, c := range checks {
		good, findings := c.judge(ranks)
		if good == "" && len(findings) == 0 {
			continue
		}
		result := Result{Check: c.name, Good: good, Findings: findings, Docs: "docs/doctor.md#" + c.name}
		for _, f := range findings {
			result.Good = ""
			result.Level = max(result.Level, f.Level)
		}
		r.Verdict = max(r.Verdict, result.Level)
		r.Results = append(r.Results, result)
	}
	return r
}

func checkGroup(ranks []Facts) (good string, findings []Finding) {
	for _, f := range ranks {
		if f.Failure != "" {
			findings = append(findings, Finding{Broken, fmt.Sprintf("rank %d on %s failed: %s", f.Rank, f.Host, f.Failure),
				"the error says which rank is missing, differs or failed first; see docs/failures.md"})
		}
	}
	if len(ranks) > 1 {
		good = fmt.Sprintf("%d ranks met and exchanged data", len(ranks))
	}
	return good, findings
}

func checkLibraries(ranks []Facts) (good string, findings []Finding) {
	versions := map[string]map[string]int{} // by library and version: the first rank that has it
	type fault struct {
		node        int
		name, error string
	}
	seen := map[fault]bool{} // the ranks of a host mostly have the same libraries
	for _, f := range ranks {
		hasGPU := f.GPU != ""
		for _, l := range f.Libraries {
			where := fmt.Sprintf("rank %d on %s: ", f.Rank, f.Host)
			id := fault{f.Node, l.Name, l.Error}
			isKnown := seen[id]
			seen[id] = true
			switch {
			case l.Error != "" && isKnown:
				continue
			case l.Error != "" && l.Name == "OpenBLAS":
				if !hasGPU {
					findings = append(findings, Finding{Slow, where + l.Error + "; matrix products on the CPU run at about a tenth of the speed",
						"install OpenBLAS (Debian: libopenblas0), or name it in " + jobenv.OpenBLASVar})
				}
				continue
			case l.Error != "" && l.Name == "oneDNN":
				if !hasGPU {
					findings = append(findings, Finding{Slow, where + l.Error + "; goddp's own, slower kernels compute convolutions on the CPU",
						"install oneDNN (Debian: libdnnl-dev), or set " + jobenv.OneDNNVar + "=none if the model has no convolutions"})
				}
				continue
			case l.Error != "" && l.Name == "cuDNN":
				findings = append(findings, Finding{Slow, where + l.Error + "; goddp's own, slower kernels compute convolutions and attention",
					"install cuDNN 9 (Python package nvidia-cudnn), or set " + jobenv.LibCUDNNVar + "=none if the model has no convolutions and no attention in 16 bits"})
				continue
			case l.Error != "" && l.Name == "NVML":
				findings = append(findings, Finding{Slow, where + "the GPUs' states are unknown: " + l.Error, "install the driver's libnvidia-ml.so.1 of the same version as the driver"})
				continue
			case l.Error != "":
				findings = append(findings, Finding{Broken, where + l.Name + at(l) + ": " + l.Error, "install a version that docs/gpu.md lists, on the loader's path or where " + jobenv.LibraryPrefix + "* names it"})
			}
			if versions[l.Name] == nil {
				versions[l.Name] = map[string]int{}
			}
			if _, ok := versions[l.Name][l.Version]; !ok && l.Version != "" {
				versions[l.Name][l.Version] = f.Rank
			}
		}
	}
	for _, name := range []string{"NCCL", "libcuda", "driver", "cuBLASLt", "cuDNN", "NVRTC"} {
		if len(versions[name]) < 2 {
			continue
		}
		level := Slow
		if name == "NCCL" {
			level = Broken // NCCL's protocol differs between versions
		}
		var each []string
		for version, rank := range versions[name] {
			each = append(each, fmt.Sprintf("%s on rank %d", version, rank))
		}
		slices.Sort(each)
		findings = append(findings, Finding{level, fmt.Sprintf("%s has different versions: %s", name, strings.Join(each, ", ")), "install the same version on every host"})
	}
	var list []string
	for _, l := range ranks[0].Libraries {
		if l.Path != "" {
			list = append(list, l.Name+" "+l.Version+at(l))
		}
	}
	return strings.Join(list, ", "), findings
}

// at returns where a library is, in parentheses.
func at(l Library) string {
	if l.Path == "" {
		return ""
	}
	return " (" + l.Path + ")"
}

// NCCL's transport over shared memory takes about 10 MiB for each connection of two ranks. A rank
// has two connections for a ring, and at least one more for the tree.
const sharedMemoryPerRank = 32 << 20

func checkSharedMemory(ranks []Facts) (good string, findings []Finding) {
	for _, f := range hosts(ranks) {
		gpus := 0
		for _, other := range ranks {
			if other.Node == f.Node && other.GPU != "" {
				gpus++
			}
		}
		if gpus == 0 {
			continue // only NCCL needs it
		}
		need := uint64(gpus) * sharedMemoryPerRank
		if f.SharedMemory.Size > 0 && f.SharedMemory.Free < need {
			findings = append(findings, Finding{Broken, fmt.Sprintf("%s: %s has %s free of %s, want %s for %s",
				f.Host, sharedMemory, formatBytes(f.SharedMemory.Free), formatBytes(f.SharedMemory.Size), formatBytes(need), count(gpus, "GPU")),
				"remove what is left over in " + sharedMemory + ", or make it larger (docker run --shm-size=8g; mount -o remount,size=8g)"})
		}
	}
	if s := ranks[0].SharedMemory; s.Size > 0 {
		good = fmt.Sprintf("%s has %s free of %s", sharedMemory, formatBytes(s.Free), formatBytes(s.Size))
	}
	return good, findings
}

// count formats a number of things.
func count(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}

// formatBytes formats a size.
func formatBytes(n uint64) string {
	switch {
	case n >= 10<<30:
		return fmt.Sprintf("%d GiB", n>>30)
	case n >= 10<<20:
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d KiB", n>>10)
}

func checkOpenFiles(ranks []Facts) (good string, findings []Finding) {
	// The store uses a fifth of its files for the ranks' connections, and a GPU's libraries open some
	// hundreds.
	need := uint64(max(1024, 5*len(ranks)+512))
	least := ranks[0].OpenFiles
	for _, f := range hosts(ranks) {
		least = min(least, f.OpenFiles)
		if f.OpenFiles < need {
			findings = append(findings, Finding{Broken, fmt.Sprintf("rank %d on %s may open %d files, want %d for %s", f.Rank, f.Host, f.OpenFiles, need, count(len(ranks), "rank")),
				"raise the limit before the job starts (ulimit -n 65536; LimitNOFILE= of systemd; docker run --ulimit nofile=65536)"})
		}
	}
	return fmt.Sprintf("%d may be open", least), findings
}

func checkLockedMemory(ranks []Facts) (good string, findings []Finding) {
	const need = 1 << 30 // NCCL registers some hundreds of MiB of buffers with each adapter
	for _, f := range hosts(ranks) {
		switch {
		case len(f.RDMAAdapters) == 0 || f.GPU == "":
		case f.LockedMemory < need && !f.IsRoot:
			findings = append(findings, Finding{Broken, fmt.Sprintf("%s has the RDMA adapters %s and may lock %s, want %s or more", f.Host, strings.Join(f.RDMAAdapters, " "), formatBytes(f.LockedMemory), formatBytes(need)),
				"set the limit to unlimited (ulimit -l unlimited; LimitMEMLOCK=infinity; docker run --ulimit memlock=-1)"})
		default:
			good = "enough for RDMA"
		}
	}
	return good, findings
}

func checkInterfaces(ranks []Facts) (good string, findings []Finding) {
	for _, f := range hosts(ranks) {
		for _, variable := range []string{"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"} {
			value := f.Environment[variable]
			if value == "" {
				continue
			}
			var all, selected []string
			isUp := false
			for _, i := range f.Interfaces {
				all = append(all, i.Name)
				if selects(variable, value, i.Name) {
					selected = append(selected, i.Name)
					isUp = isUp || i.IsUp && len(i.Addresses) > 0
				}
			}
			fix := "set " + variable + " to an interface of every host that is up, or unset it"
			switch {
			case len(selected) == 0:
				findings = append(findings, Finding{Broken, fmt.Sprintf("%s: %s is %q, and the host has %s", f.Host, variable, value, strings.Join(all, ", ")), fix})
			case !isUp:
				findings = append(findings, Finding{Broken, fmt.Sprintf("%s: %s is %q, which selects %s: not up, or without an address", f.Host, variable, value, strings.Join(selected, ", ")), fix})
			}
		}
	}
	var list []string
	for _, i := range ranks[0].Interfaces {
		if i.IsUp && len(i.Addresses) > 0 {
			list = append(list, i.Name+" "+i.Addresses[0])
		}
	}
	return strings.Join(list, ", "), findings
}

// selects reports whether the value of a variable selects an interface. NCCL's variable is a list of
// prefixes; "=" before it means whole names, and "^" all others. Gloo's is one name.
func selects(variable, value, name string) bool {
	if variable == "GLOO_SOCKET_IFNAME" {
		return slices.Contains(strings.Split(value, ","), name)
	}
	value, isExcluded := strings.CutPrefix(value, "^")
	value, isExact := strings.CutPrefix(value, "=")
	for _, part := range strings.Split(value, ",") {
		if part == name || !isExact && part != "" && strings.HasPrefix(name, part) {
			return !isExcluded
		}
	}
	return isExcluded
}

// virtual are the beginnings of the names of interfaces that lead to containers and not to other hosts.
var virtual = []string{"docker", "veth", "br-", "virbr", "cni", "cali", "flannel"}

// leadsOut reports whether other hosts may be reached by an interface.
func (i Interface) leadsOut() bool {
	return !i.IsLoopback && i.IsUp && len(i.Addresses) > 0 && !slices.ContainsFunc(virtual, func(v string) bool { return strings.HasPrefix(i.Name, v) })
}

func checkMTU(ranks []Facts) (good string, findings []Finding) {
	first := hosts(ranks)
	if len(first) < 2 {
		return "", nil
	}
	type place struct {
		host string
		mtu  int
	}
	seen := map[string]place{} // by interface
	for _, f := range first {
		for _, i := range f.Interfaces {
			if !i.leadsOut() {
				continue
			}
			before, ok := seen[i.Name]
			if !ok {
				seen[i.Name] = place{f.Host, i.MTU}
			} else if before.mtu != i.MTU {
				findings = append(findings, Finding{Slow, fmt.Sprintf("%s has the MTU %d on %s and %d on %s", i.Name, before.mtu, before.host, i.MTU, f.Host),
					"set the same MTU on every host and on the switch (ip link set " + i.Name + " mtu N); large packets are lost or split otherwise"})
			}
		}
	}
	return "interfaces with the same name have the same MTU", findings
}

func checkPort(ranks []Facts) (good string, findings []Finding) {
	for _, f := range ranks {
		if f.PortError != "" {
			findings = append(findings, Finding{Broken, fmt.Sprintf("rank %d on %s cannot listen on MASTER_PORT: %s", f.Rank, f.Host, f.PortError),
				"end the process that has the port (ss -ltnp names it), or choose another MASTER_PORT on all ranks"})
		}
	}
	return "", findings
}

// clockTolerance is much more than NTP's error of some milliseconds plus the error of an estimate by a
// barrier.
const clockTolerance = time.Second

func checkClocks(ranks []Facts) (good string, findings []Finding) {
	first := hosts(ranks)
	if len(first) < 2 {
		return "", nil
	}
	var most time.Duration
	for _, f := range first {
		most = max(most, f.ClockOffset.Abs())
		if f.ClockOffset.Abs() > clockTolerance+f.ClockError {
			findings = append(findings, Finding{Slow, fmt.Sprintf("the clock of %s differs from that of %s by %v, want at most %v", f.Host, first[0].Host, f.ClockOffset.Round(time.Millisecond), clockTolerance),
				"start an NTP client on both hosts (chronyc tracking says whether it works); logs and traces of the hosts do not line up otherwise"})
		}
	}
	return fmt.Sprintf("at most %v apart", most.Round(time.Millisecond)), findings
}

func checkNUMA(ranks []Facts) (good string, findings []Finding) {
	for _, f := range hosts(ranks) {
		if f.NUMANodes != ranks[0].NUMANodes {
			findings = append(findings, Finding{Slow, fmt.Sprintf("%s has %d NUMA nodes and %s has %d", f.Host, f.NUMANodes, ranks[0].Host, ranks[0].NUMANodes),
				"compare the hosts' firmware settings (NPS, sub-NUMA clustering)"})
		}
	}
	if ranks[0].NUMANodes > 0 {
		good = fmt.Sprintf("NUMA nodes: %d", ranks[0].NUMANodes)
	}
	return good, findings
}
