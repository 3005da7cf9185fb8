package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/goddp/goddp/cmd/goddp/internal/nccllog"
)

// These are the shares of the fastest pair's speed below which a pair is slow. In networks with two levels of
// switches, pairs in different racks often have half of the speed. On hosts in which NVLink connects only some of
// the GPUs, pairs without NVLink have about a fifth of NVLink's speed.
const (
	slowRemotePair = 1. / 3
	slowLocalPair  = 1. / 8
)

// A pair between hosts is also slow below a tenth of the nominal speed of both hosts' interfaces. But a pair that
// reaches slowTCP is not slow by this rule, because one core may not move more over a fast link.
const (
	slowInterface = 1. / 10
	slowTCP       = 100e6 // bytes per second
)

func checkPairs(ranks []Facts) (good string, findings []Finding) {
	var local, remote []Pair // NVLink is faster than a network, so the two are judged apart
	for _, f := range ranks {
		for _, p := range f.Pairs {
			if ranks[p.A].Node == ranks[p.B].Node {
				local = append(local, p)
			} else {
				remote = append(remote, p)
			}
		}
	}
	var parts []string
	for _, kind := range []struct {
		name  string
		pairs []Pair
		share float64
	}{{"on one host", local, slowLocalPair}, {betweenHosts, remote, slowRemotePair}} {
		if len(kind.pairs) == 0 {
			continue
		}
		bySpeed := func(a, b Pair) int { return cmp.Compare(a.BytesPerSecond, b.BytesPerSecond) }
		slowest, fastest := slices.MinFunc(kind.pairs, bySpeed), slices.MaxFunc(kind.pairs, bySpeed)
		parts = append(parts, fmt.Sprintf("%s of ranks %s: %s", count(len(kind.pairs), "pair"), kind.name, span(rate(slowest.BytesPerSecond), rate(fastest.BytesPerSecond))))
		isNamed := map[Pair]bool{}
		slow := slowPairs(ranks, kind.pairs, fastest.BytesPerSecond, kind.share, isNamed)
		if kind.name == betweenHosts {
			for _, p := range kind.pairs {
				if made := slowestInterface(ranks, p); p.BytesPerSecond < min(slowInterface*made, slowTCP) && !isNamed[p] {
					slow = append(slow, Finding{Slow, fmt.Sprintf("%s and %s exchange %s, but the nominal speed of their slowest interface is %s",
						rankName(ranks, p.A), rankName(ranks, p.B), rate(p.BytesPerSecond), rate(made)), fixPath})
				}
			}
		}
		findings = append(findings, slow...)
	}
	return strings.Join(parts, "; "), findings
}

const (
	betweenHosts = "between hosts"
	fixPath      = "look at the path between the two: interfaces (ethtool, ip -s link, tc qdisc), cables, switches"
)

// slowestInterface returns the nominal speed of the slowest interface that may connect the hosts of a pair; 0 if
// unknown.
func slowestInterface(ranks []Facts, p Pair) (slowest float64) {
	for _, r := range []int{p.A, p.B} {
		for _, i := range ranks[ranks[r].Node].Interfaces {
			if i.Speed > 0 && i.leadsOut() && (slowest == 0 || i.Speed < slowest) {
				slowest = i.Speed
			}
		}
	}
	return slowest
}

// rankName names a rank and its host.
func rankName(ranks []Facts, r int) string { return fmt.Sprintf("rank %d (%s)", r, ranks[r].Host) }

// slowPairs names the ranks and pairs that are slow compared with the fastest pair, and adds the pairs to isNamed. A
// rank is the culprit if all its pairs are slow and one of its neighbours is fast with another rank.
func slowPairs(ranks []Facts, pairs []Pair, fastest, share float64, isNamed map[Pair]bool) (findings []Finding) {
	slow, count := map[int][]Pair{}, map[int]int{} // by rank
	for _, p := range pairs {
		for _, r := range []int{p.A, p.B} {
			count[r]++
			if p.BytesPerSecond < share*fastest {
				slow[r] = append(slow[r], p)
			}
		}
	}
	for r := range ranks {
		isCulprit := len(slow[r]) > 1 && len(slow[r]) == count[r] && slices.ContainsFunc(slow[r], func(p Pair) bool {
			other := p.A + p.B - r
			return len(slow[other]) < count[other]
		})
		if isCulprit {
			for _, p := range slow[r] {
				isNamed[p] = true
			}
			findings = append(findings, Finding{Slow, fmt.Sprintf("%s exchanges %s with each of %d ranks, and the fastest pair %s", rankName(ranks, r), rate(slow[r][0].BytesPerSecond), count[r], rate(fastest)),
				"look at the speed, the cable and the errors of this host's interface (ethtool, ip -s link, tc qdisc), and at its switch port"})
		}
	}
	for _, p := range pairs {
		if p.BytesPerSecond < share*fastest && !isNamed[p] {
			isNamed[p] = true
			findings = append(findings, Finding{Slow, fmt.Sprintf("%s and %s exchange %s, and the fastest pair %s", rankName(ranks, p.A), rankName(ranks, p.B), rate(p.BytesPerSecond), rate(fastest)), fixPath})
		}
	}
	return findings
}

// fairAllReduce is the share of the NVLinks' speed below which an all-reduce is slow. Between 2 H200s an all-reduce
// of 64 MiB reaches 0.6 of this speed. Through the host's memory it reaches less than a tenth.
const fairAllReduce = 0.25

// speedOfNVLinks is the minimum speed of one NVLink of the third or a later generation in each direction, in bytes
// per second.
const speedOfNVLinks = 25e9

func checkAllReduce(ranks []Facts) (good string, findings []Finding) {
	got := ranks[0].AllReduce
	if got == 0 {
		return "", nil
	}
	if first := hosts(ranks); len(first) == 1 && allHaveNVLinks(first[0].NVML) {
		for _, g := range first[0].NVML.GPUs {
			if want := fairAllReduce * speedOfNVLinks * float64(g.NVLinks); g.BusID == ranks[0].GPU && got < want {
				findings = append(findings, Finding{Slow, fmt.Sprintf("an all-reduce of 64 MiB moves %s, and %d NVLinks give %s or more", rate(got), g.NVLinks, rate(want)),
					"look at nccl-local, and at nvidia-smi topo -m and nvlink -s"})
			}
		}
	}
	return fmt.Sprintf("64 MiB at %s (bus bandwidth)", rate(got)), findings
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
		what := "NCCL uses TCP sockets between hosts"
		if len(adapters) > 0 {
			what += ", and the hosts have the RDMA adapters " + strings.Join(adapters, " ")
		}
		findings = append(findings, Finding{Slow, what + "; " + cmp.Or(set, "no variable asks for it"),
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
		if set := settings(ranks, "NCCL_P2P_DISABLE"); set != "" && slices.ContainsFunc(ranks, func(f Facts) bool { return f.GPU != "" }) {
			findings = append(findings, Finding{Slow, set + ": GPUs of one host exchange data through the host's memory", "unset NCCL_P2P_DISABLE"})
		}
		return "", findings
	}
	switch v := log.Verdicts(); {
	case v.Local == nccllog.P2P:
		good = "GPUs of one host read each other's memory (P2P; NCCL_P2P_LEVEL)"
	case v.Local == nccllog.SHM && (set != "" || slices.ContainsFunc(ranks, func(f Facts) bool { return allHaveNVLinks(f.NVML) })):
		if set == "" {
			set = "no variable asks for it, and the GPUs have NVLink"
		}
		findings = append(findings, Finding{Slow, "GPUs of one host exchange data through the host's memory (SHM), not directly (P2P): " + set,
			"unset NCCL_P2P_DISABLE and NCCL_P2P_LEVEL; look at nvidia-smi topo -p2p r, and at the IOMMU's settings"})
	case v.Local == nccllog.SHM:
		good = "GPUs of one host exchange data through the host's memory (SHM); NVLink does not connect them all"
	}
	return good, findings
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
	switch {
	case log == nil && ranks[0].AllReduce > 0:
		return "unknown: NCCL wrote no log", nil
	case log == nil:
		return "", nil
	}
	v := log.Verdicts()
	if log.Size == 1 {
		return count(v.Channels, "channel") + "; one rank has no other to connect with", nil
	}
	for _, fault := range v.Faults {
		findings = append(findings, Finding{Broken, "NCCL's " + fault, "run again; if it stays, report it to NCCL with the log (NCCL_DEBUG=INFO)"})
	}
	good = fmt.Sprintf("%s; each ring and each tree holds all %d ranks", count(v.Channels, "channel"), log.Size)
	if len(v.Choices) > 0 {
		good += "; " + v.Choices[len(v.Choices)-1]
	}
	return good + " (NCCL_MIN_NCHANNELS, NCCL_ALGO, NCCL_PROTO)", findings
}
