package nccllog

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Log is what NCCL's log says about one communicator.
type Log struct {
	Version string // "2.28.3+cuda13.0"
	// Plugin is the network that NCCL selected, whether or not a connection needs one: "IB".
	Plugin string
	// Adapters are the network's adapters: "mlx5_0:1/IB", "mlx5_1:1/RoCE", "eth0:10.0.0.5<0>".
	Adapters []string
	// Size and Nodes are the communicator's numbers of ranks and of nodes, 0 if unknown.
	Size, Nodes int
	Connections []Connection
	Rings       map[int][]int         // by channel: the ranks in the ring's order; none if NCCL cut the line
	Trees       map[int]map[int]Place // by channel and rank
	Choices     []Choice
	// Variables are the settings that NCCL took from the environment: "NCCL_P2P_DISABLE=1".
	Variables []string
}

// Choice is the algorithm and the protocol of calls of one size.
type Choice struct {
	Collective          string // "AllReduce"
	Bytes               int
	Algorithm, Protocol string // "RING", "SIMPLE"
}

func (c Choice) String() string {
	return fmt.Sprintf("%s of %d bytes: %s, %s", c.Collective, c.Bytes, c.Algorithm, c.Protocol)
}

// Connection is a connection from one rank to another.
type Connection struct {
	Channel, From, To int
	Via               string // "P2P/CUMEM", "SHM/direct/direct", "NET/IB/0/GDRDMA"
}

// Place is a rank's place in a tree. A Parent of -1 means that the rank is the root.
type Place struct {
	Parent   int
	Children []int
}

// These are the lines that Parse recognizes, after "NCCL INFO ".
var (
	versionLine    = regexp.MustCompile(`^NCCL version (\S+)`)
	pluginLine     = regexp.MustCompile(`^Using network (.+)$`)
	adaptersLine   = regexp.MustCompile(`^NET/(?:IB|Socket) ?: Using (.*)$`)
	adapter        = regexp.MustCompile(`\[\d+\] ?([^\s\[\],;{}]+:[^\s\[\],;{}]+)`)
	sizeLine       = regexp.MustCompile(`^comm \S+ rank \d+ nRanks (\d+) nNodes (\d+) `)
	ringLine       = regexp.MustCompile(`^Channel (\d+)/\d+ :((?:\s+\d+)+)\s*$`)
	connectionLine = regexp.MustCompile(`^Channel (\d+)(?:/\d+)? : (\d+)\[\w+\] -> (\d+)\[\w+\](?: \[(?:send|receive)\])? via (\S+)`)
	place          = regexp.MustCompile(`\[(\d+)\] ([-\d/]+)->(\d+)->(-?\d+)`)
	choiceLine     = regexp.MustCompile(`^(\w+): (\d+) Bytes -> Algo (\S+) proto (\S+)`)
	variableLine   = regexp.MustCompile(`^(NCCL_\w+) set by environment to (.+?)\.?$`)
)

// longest is the length from which a line may have been cut: NCCL has 1024 bytes for it.
const longest = 1000

// Parse reads a log: of one rank, or of several.
func Parse(text string) Log {
	l := Log{Rings: map[int][]int{}, Trees: map[int]map[int]Place{}}
	for line := range strings.Lines(text) {
		if _, message, ok := strings.Cut(strings.TrimRight(line, "\r\n"), "NCCL INFO "); ok {
			l.add(message)
		}
	}
	return l
}

// add adds what one line says.
func (l *Log) add(message string) {
	if m := versionLine.FindStringSubmatch(message); m != nil {
		l.Version = m[1]
	} else if m := pluginLine.FindStringSubmatch(message); m != nil {
		l.Plugin = strings.TrimSpace(m[1])
	} else if m := adaptersLine.FindStringSubmatch(message); m != nil {
		before, _, _ := strings.Cut(m[1], "OOB") // the interface of the bootstrap carries no data
		for _, a := range adapter.FindAllStringSubmatch(before, -1) {
			l.Adapters = addNew(l.Adapters, a[1])
		}
	} else if m := sizeLine.FindStringSubmatch(message); m != nil {
		l.Size, l.Nodes = number(m[1]), number(m[2])
	} else if m := ringLine.FindStringSubmatch(message); m != nil {
		var ring []int
		for _, rank := range strings.Fields(m[2]) {
			ring = append(ring, number(rank))
		}
		if len(message) >= longest {
			ring = nil
		}
		l.Rings[number(m[1])] = ring
	} else if m := connectionLine.FindStringSubmatch(message); m != nil {
		l.Connections = addNew(l.Connections, Connection{number(m[1]), number(m[2]), number(m[3]), m[4]}) // both ranks log it
	} else if trees, ok := strings.CutPrefix(message, "Trees "); ok {
		places := place.FindAllStringSubmatch(trees, -1)
		if len(message) >= longest && len(places) > 0 {
			places = places[:len(places)-1]
		}
		for _, m := range places {
			l.addPlace(number(m[1]), number(m[3]), m[2], number(m[4]))
		}
	} else if m := choiceLine.FindStringSubmatch(message); m != nil {
		l.Choices = addNew(l.Choices, Choice{m[1], number(m[2]), m[3], m[4]})
	} else if m := variableLine.FindStringSubmatch(message); m != nil {
		l.Variables = addNew(l.Variables, m[1]+"="+m[2])
	}
}

// addPlace adds the place of a rank in the tree of a channel.
func (l *Log) addPlace(channel, rank int, children string, parent int) {
	p := Place{Parent: parent}
	for _, child := range strings.Split(children, "/") {
		if n := number(child); n >= 0 {
			p.Children = append(p.Children, n)
		}
	}
	if l.Trees[channel] == nil {
		l.Trees[channel] = map[int]Place{}
	}
	l.Trees[channel][rank] = p
}

// Merge merges the logs of a communicator's ranks. A fact logged by only some ranks, such as the
// version, comes from the first of them.
func Merge(logs []Log) Log {
	all := Parse("")
	seen := map[Connection]bool{} // a large job has too many connections for addNew
	for _, l := range logs {
		all.Version = cmp.Or(all.Version, l.Version)
		all.Plugin = cmp.Or(all.Plugin, l.Plugin)
		all.Size, all.Nodes = max(all.Size, l.Size), max(all.Nodes, l.Nodes)
		for _, c := range l.Connections {
			if !seen[c] {
				seen[c] = true
				all.Connections = append(all.Connections, c)
			}
		}
		for channel, ring := range l.Rings {
			all.Rings[channel] = ring
		}
		for channel, places := range l.Trees {
			for rank, p := range places {
				if all.Trees[channel] == nil {
					all.Trees[channel] = map[int]Place{}
				}
				all.Trees[channel][rank] = p
			}
		}
		for _, a := range l.Adapters {
			all.Adapters = addNew(all.Adapters, a)
		}
		for _, c := range l.Choices {
			all.Choices = addNew(all.Choices, c)
		}
		for _, v := range l.Variables {
			all.Variables = addNew(all.Variables, v)
		}
	}
	return all
}

// addNew appends v to s, unless s holds it.
func addNew[T comparable](s []T, v T) []T {
	if slices.Contains(s, v) {
		return s
	}
	return append(s, v)
}

// number parses a number that a pattern has found.
func number(text string) int {
	n, _ := strconv.Atoi(text)
	return n
}
