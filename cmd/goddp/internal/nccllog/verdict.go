package nccllog

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/goddp/goddp/internal/rootcause"
)

// Transport is what connections use.
type Transport string

// The transports. A network of another plugin has the plugin's name.
const (
	NoTransport Transport = "none"   // one rank, or NCCL has logged no connection
	P2P         Transport = "P2P"    // from GPU to GPU over NVLink or PCIe
	SHM         Transport = "SHM"    // through memory of the host
	InfiniBand  Transport = "IB"     // NCCL's IB transport over InfiniBand
	RoCE        Transport = "RoCE"   // NCCL's IB transport over Ethernet
	Socket      Transport = "Socket" // TCP through the kernel
)

// Verdicts are what NCCL chose.
type Verdicts struct {
	// Network is the transport between nodes; NoTransport if no connection leaves a node.
	Network Transport `json:"network"`
	// Local is the slowest transport between ranks of one node; NoTransport if there is no such
	// connection.
	Local Transport `json:"local"`
	// RDMAConnections is how many of the NetworkConnections use GPUDirect RDMA.
	RDMAConnections    int `json:"rdma_connections"`
	NetworkConnections int `json:"network_connections"`
	Channels           int `json:"channels"`
	// Choices are the algorithm and the protocol of each kind of call, of small calls first.
	Choices []string `json:"choices"`
	Rings   int      `json:"rings"`
	Trees   int      `json:"trees"`
	// Faults names the rings and trees that do not contain every rank, except rings and trees that the log
	// does not show in full.
	Faults []string `json:"faults,omitempty"`
	// Variables are the settings that NCCL took from the environment.
	Variables []string `json:"variables,omitempty"`
}

// Verdicts says what NCCL chose. l is the merged log of all ranks.
func (l Log) Verdicts() Verdicts {
	v := Verdicts{
		Network: NoTransport, Local: NoTransport, Variables: l.Variables,
		Channels: max(len(l.Rings), len(l.Trees)), Rings: len(l.Rings), Trees: len(l.Trees),
	}
	bySize := slices.SortedStableFunc(slices.Values(l.Choices), func(a, b Choice) int { return cmp.Compare(a.Bytes, b.Bytes) })
	for _, c := range bySize {
		v.Choices = append(v.Choices, c.String())
	}
	for _, c := range l.Connections {
		kind, rest, _ := strings.Cut(c.Via, "/")
		switch kind {
		case "NET":
			v.NetworkConnections++
			if strings.Contains(rest, "GDRDMA") {
				v.RDMAConnections++
			}
			v.Network = l.network(rest)
		case "SHM":
			v.Local = SHM
		case "P2P":
			if v.Local == NoTransport {
				v.Local = P2P
			}
		}
	}
	for _, channel := range slices.Sorted(maps.Keys(l.Rings)) {
		ring := l.Rings[channel]
		if missing := l.missing(ring); len(ring) > 0 && len(missing) > 0 {
			v.Faults = append(v.Faults, fmt.Sprintf("ring %d lacks %s of %d", channel, rootcause.Ranks(missing), l.Size))
		}
	}
	for _, channel := range slices.Sorted(maps.Keys(l.Trees)) {
		if len(l.Trees[channel]) < l.Size {
			continue // the log of a rank is missing, or NCCL has cut the line
		}
		if reached := l.reached(channel); len(l.missing(reached)) > 0 {
			v.Faults = append(v.Faults, fmt.Sprintf("tree %d lacks %s of %d", channel, rootcause.Ranks(l.missing(reached)), l.Size))
		}
	}
	return v
}

// network returns the transport of a connection over a network. name is what follows "NET/": "IB/0/GDRDMA",
// "IBext_v8/1". The adapters tell InfiniBand from RoCE.
func (l Log) network(name string) Transport {
	plugin, _, _ := strings.Cut(name, "/")
	if !strings.HasPrefix(plugin, "IB") {
		return Transport(plugin)
	}
	for _, a := range l.Adapters {
		if strings.HasSuffix(a, "/RoCE") {
			return RoCE
		}
	}
	return InfiniBand
}

// missing returns the ranks of the communicator that are not in ranks.
func (l Log) missing(ranks []int) (missing []int) {
	for r := range l.Size {
		if !slices.Contains(ranks, r) {
			missing = append(missing, r)
		}
	}
	return missing
}

// reached returns the ranks of a tree that its root reaches. NCCL's trees have one root.
func (l Log) reached(channel int) (ranks []int) {
	places := l.Trees[channel]
	for _, r := range slices.Sorted(maps.Keys(places)) {
		if places[r].Parent == -1 {
			ranks = append(ranks, r)
			break
		}
	}
	for i := 0; i < len(ranks); i++ {
		for _, child := range places[ranks[i]].Children {
			if p, ok := places[child]; ok && p.Parent == ranks[i] && !slices.Contains(ranks, child) {
				ranks = append(ranks, child)
			}
		}
	}
	return ranks
}
