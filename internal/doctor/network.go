package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/goddp/goddp/internal/nccllog"
)

// slowPair is the share of the fastest pair's speed below which a pair is slow. Networks with two levels of
// switches often have half of the speed between racks, so the share is less than that.
const slowPair = 1. / 3

func checkPairs(ranks []Facts) (good string, findings []Finding) {
	var pairs []Pair
	for _, f := range ranks {
		pairs = append(pairs, f.Pairs...)
	}
	if len(pairs) == 0 {
		return "", nil
	}
	slowest, fastest := pairs[0].BytesPerSecond, 0.
	for _, p := range pairs {
		slowest, fastest = min(slowest, p.BytesPerSecond), max(fastest, p.BytesPerSecond)
	}
	slow := map[int][]Pair{} // by rank
	count := map[int]int{}   // of all pairs, by rank
	for _, p := range pairs {
		for _, r := range []int{p.A, p.B} {
			count[r]++
			if p.BytesPerSecond < slowPair*fastest {
				slow[r] = append(slow[r], p)
			}
		}
	}
	name := func(r int) string { return fmt.Sprintf("rank %d (%s)", r, ranks[r].Host) }
	isNamed := map[int]bool{}
	for r := range ranks { // a rank of which every pair is slow, while a peer of it is fast with others
		isCulprit := len(slow[r]) > 1 && len(slow[r]) == count[r] && slices.ContainsFunc(slow[r], func(p Pair) bool {
			other := p.A + p.B - r
			return len(slow[other]) < count[other]
		})
		if isCulprit {
			isNamed[r] = true
			findings = append(findings, Finding{Slow, fmt.Sprintf("%s exchanges %s with each of its %d neighbours, and the fastest pair %s", name(r), rate(slow[r][0].BytesPerSecond), count[r], rate(fastest)),
				"look at the speed, the cable and the errors of this host's interface (ethtool, ip -s link), and at its switch port"})
		}
	}
	for _, p := range pairs {
		if p.BytesPerSecond < slowPair*fastest && !isNamed[p.A] && !isNamed[p.B] {
			findings = append(findings, Finding{Slow, fmt.Sprintf("%s and %s exchange %s, and the fastest pair %s", name(p.A), name(p.B), rate(p.BytesPerSecond), rate(fastest)),
				"look at the path between the two: interfaces, cables, switches"})
		}
	}
	return fmt.Sprintf("%d pairs exchange %s to %s", len(pairs), rate(slowest), rate(fastest)), findings
}

// rate formats a speed.
func rate(bytesPerSecond float64) string {
	if bytesPerSecond >= 1e9 {
		return fmt.Sprintf("%.1f GB/s", bytesPerSecond/1e9)
	}
	return fmt.Sprintf("%.1f MB/s", bytesPerSecond/1e6)
}

// merged returns NCCL's log of all ranks; nil if no rank has one.
func merged(ranks []Facts) *nccllog.Log {
	var logs []nccllog.Log
	for _, f := range ranks {
		if f.NCCL != nil {
			logs = append(logs, *f.NCCL)
		}
	}
	if logs == nil {
		return nil
	}
	all := nccllog.Merge(logs)
	return &all
}

// settings returns the ranks' values of some variables, as text: "NCCL_P2P_DISABLE=1 on rank 0".
func settings(ranks []Facts, variables ...string) string {
	var found []string
	for _, v := range variables {
		for _, f := range ranks {
			if value := f.Environment[v]; value != "" && value != "0" {
				found = append(found, fmt.Sprintf("%s=%s on rank %d", v, value, f.Rank))
				break
			}
		}
	}
	return strings.Join(found, ", ")
}

func checkNetwork(ranks []Facts) (good string, findings []Finding) {
	log := merged(ranks)
	if log == nil {
		return "", nil
	}
	v := log.Verdicts()
	set := settings(ranks, "NCCL_IB_DISABLE", "NCCL_NET", "NCCL_NET_PLUGIN")
	var adapters []string
	for _, f := range ranks {
		if len(f.RDMAAdapters) > 0 {
			adapters = f.RDMAAdapters
			break
		}
	}
	if v.Network == nccllog.Socket && (len(adapters) > 0 || set != "") {
		why := set
		if why == "" {
			why = "no variable asks for it"
		}
		findings = append(findings, Finding{Slow, fmt.Sprintf("NCCL uses TCP sockets between hosts, and the hosts have the RDMA adapters [%s]; %s", strings.Join(adapters, " "), why),
			"unset NCCL_IB_DISABLE and NCCL_NET, set NCCL_IB_HCA to the adapters, and give a container /dev/infiniband"})
	}
	switch v.Network {
	case nccllog.NoTransport:
		good = "no connection leaves a host"
	case nccllog.Socket:
		good = "TCP sockets over " + strings.Join(log.Adapters, " ") + "; the hosts have no RDMA adapter (NCCL_SOCKET_IFNAME, NCCL_SOCKET_NTHREADS)"
	default:
		good = fmt.Sprintf("%s over %s (NCCL_IB_HCA, NCCL_NET)", v.Network, strings.Join(log.Adapters, " "))
	}
	return good, findings
}

func checkLocal(ranks []Facts) (good string, findings []Finding) {
	set := settings(ranks, "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE")
	log := merged(ranks)
	if log == nil {
		if set := settings(ranks, "NCCL_P2P_DISABLE"); set != "" {
			findings = append(findings, Finding{Slow, set + ": GPUs of one host exchange data through the host's memory", "unset NCCL_P2P_DISABLE"})
		}
		return "", findings
	}
	switch v := log.Verdicts(); {
	case v.Local == nccllog.P2P:
		good = "GPUs of one host read each other's memory (P2P; NCCL_P2P_LEVEL)"
	case v.Local == nccllog.SHM && (set != "" || hasNVLinks(ranks)):
		if set == "" {
			set = "no variable asks for it, and the GPUs have NVLink"
		}
		findings = append(findings, Finding{Slow, "GPUs of one host exchange data through the host's memory (SHM), not directly (P2P): " + set,
			"unset NCCL_P2P_DISABLE and NCCL_P2P_LEVEL; look at nvidia-smi topo -p2p r, and at the IOMMU's settings"})
	case v.Local == nccllog.SHM:
		good = "GPUs of one host exchange data through the host's memory (SHM); they have no NVLink"
	}
	return good, findings
}

// hasNVLinks reports whether a GPU of the job has an active NVLink.
func hasNVLinks(ranks []Facts) bool {
	for _, f := range ranks {
		if f.NVML == nil {
			continue
		}
		for _, g := range f.NVML.GPUs {
			if g.NVLinks > 0 {
				return true
			}
		}
	}
	return false
}

func checkRDMA(ranks []Facts) (good string, findings []Finding) {
	log := merged(ranks)
	if log == nil {
		return "", nil
	}
	v := log.Verdicts()
	if v.Network != nccllog.InfiniBand && v.Network != nccllog.RoCE {
		return "", nil
	}
	if v.RDMAConnections < v.NetworkConnections {
		what := fmt.Sprintf("GPUDirect RDMA: %d of %d connections between hosts use it", v.RDMAConnections, v.NetworkConnections)
		if set := settings(ranks, "NCCL_NET_GDR_LEVEL", "NCCL_NET_GDR_READ", "NCCL_DMABUF_ENABLE"); set != "" {
			what += "; " + set
		}
		findings = append(findings, Finding{Slow, what, "load nvidia_peermem (modprobe nvidia_peermem) or use a driver with DMA-BUF, set NCCL_NET_GDR_LEVEL=SYS for a test, and switch PCIe ACS off"})
	}
	return fmt.Sprintf("all %d connections between hosts use GPUDirect RDMA (NCCL_NET_GDR_LEVEL)", v.NetworkConnections), findings
}

func checkRings(ranks []Facts) (good string, findings []Finding) {
	log := merged(ranks)
	if log == nil {
		return "", nil
	}
	v := log.Verdicts()
	for _, fault := range v.Faults {
		findings = append(findings, Finding{Broken, "NCCL's " + fault, "run again; if it stays, report it to NCCL with the log (NCCL_DEBUG=INFO)"})
	}
	good = fmt.Sprintf("%d channels: %d rings and %d trees, each with all %d ranks", v.Channels, v.Rings, v.Trees, log.Size)
	if len(v.Choices) > 0 {
		good += "; " + v.Choices[len(v.Choices)-1]
	}
	return good + " (NCCL_MIN_NCHANNELS, NCCL_ALGO, NCCL_PROTO)", findings
}
