package collective

import (
	"fmt"
	"strings"

	"github.com/goddp/goddp/comm"
)

// Collective is an operation that can be measured.
type Collective struct {
	Name       string // the name of nccl-tests' program: "all_reduce"
	Reduces    bool   // it has a reduction
	Rooted     bool   // it has a root
	needsPeers bool   // it needs at least two ranks

	src, dst  extent
	busFactor func(ranks float64) float64
	start     func(c *call) *comm.Work
	// want returns the expected contents of this rank's dst after the call.
	want func(c *call, p *pattern) []piece
}

// extent is the length of a call's tensor, in counts.
type extent uint8

const (
	one   extent = iota
	all          // one count for each rank
	inSrc        // no separate memory: dst is src
)

// elements returns the length of a tensor in elements.
func (e extent) elements(count, ranks int) int {
	if e == all {
		return count * ranks
	}
	return count
}

func factorOne(n float64) float64    { return 1 }
func factorOthers(n float64) float64 { return (n - 1) / n }

var collectives = []Collective{
	{
		Name: "all_reduce", Reduces: true, src: one, dst: inSrc,
		busFactor: func(n float64) float64 { return 2 * (n - 1) / n },
		start:     func(c *call) *comm.Work { return c.pg.AllReduce(c.dst, c.Op) },
		want:      func(c *call, p *pattern) []piece { return []piece{{p.reduced, 0, c.count}} },
	},
	{
		Name: "all_gather", src: one, dst: all, busFactor: factorOthers,
		start: func(c *call) *comm.Work { return c.pg.AllGather(c.dst, c.src) },
		want:  func(c *call, p *pattern) []piece { return fromEach(c, p, 0) },
	},
	{
		Name: "reduce_scatter", Reduces: true, src: all, dst: one, busFactor: factorOthers,
		start: func(c *call) *comm.Work { return c.pg.ReduceScatter(c.dst, c.src, c.Op) },
		want: func(c *call, p *pattern) []piece {
			return []piece{{p.reduced, c.pg.Rank() * c.count, c.count}}
		},
	},
	{
		Name: "broadcast", Rooted: true, src: one, dst: inSrc, busFactor: factorOne,
		start: func(c *call) *comm.Work { return c.pg.Broadcast(c.dst, c.Root) },
		want:  func(c *call, p *pattern) []piece { return []piece{{p.given[c.Root], 0, c.count}} },
	},
	{
		Name: "reduce", Reduces: true, Rooted: true, src: one, dst: inSrc, busFactor: factorOne,
		start: func(c *call) *comm.Work { return c.pg.Reduce(c.dst, c.src, c.Op, c.Root) },
		want: func(c *call, p *pattern) []piece {
			if c.pg.Rank() != c.Root {
				return nil // the result is undefined on other ranks
			}
			return []piece{{p.reduced, 0, c.count}}
		},
	},
	{
		Name: "all_to_all", src: all, dst: all, busFactor: factorOthers,
		start: func(c *call) *comm.Work { return c.pg.AllToAll(c.dst, c.src) },
		want:  func(c *call, p *pattern) []piece { return fromEach(c, p, c.pg.Rank()*c.count) },
	},
	{
		// An exchange around a ring: each rank sends to the next one.
		Name: "sendrecv", needsPeers: true, src: one, dst: one, busFactor: factorOne,
		start: func(c *call) *comm.Work {
			me, n := c.pg.Rank(), c.pg.Size()
			return c.pg.Coalesce(func(pg *comm.ProcessGroup) {
				pg.Send(c.src, (me+1)%n)
				pg.Recv(c.dst, (me+n-1)%n)
			})
		},
		want: func(c *call, p *pattern) []piece {
			n := c.pg.Size()
			return []piece{{p.given[(c.pg.Rank()+n-1)%n], 0, c.count}}
		},
	},
}

// fromEach returns c.count elements of each rank's source, beginning at the element with index first.
func fromEach(c *call, p *pattern, first int) []piece {
	var pieces []piece
	for _, given := range p.given {
		pieces = append(pieces, piece{given, first, c.count})
	}
	return pieces
}

// scattered reports whether the size is divided by the number of ranks.
func (c *Collective) scattered() bool { return c.src == all || c.dst == all }

// Names returns the names of the collectives that can be measured.
func Names() []string {
	var names []string
	for _, c := range collectives {
		names = append(names, c.Name)
	}
	return names
}

// Find returns the collective with a name: nccl-tests' ("all_reduce", "alltoall_perf") or this
// module's ("AllReduce").
func Find(name string) (*Collective, error) {
	plain := strings.NewReplacer("_", "", "-", "")
	spelling := strings.TrimSuffix(plain.Replace(strings.ToLower(name)), "perf")
	for i := range collectives {
		if plain.Replace(collectives[i].Name) == spelling {
			return &collectives[i], nil
		}
	}
	return nil, fmt.Errorf("unknown collective %q, want %s", name, strings.Join(Names(), ", "))
}
