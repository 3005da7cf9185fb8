package backend

import (
	"fmt"
	"strings"
	"time"

	"github.com/goddp/goddp/device"
)

// Kind is the operation that a call asks for. The numbers are part of the
// wire format.
type Kind uint8

// The operations. N is the size of the group; counts are elements.
const (
	// AllReduce combines Src [c] of all ranks into Dst [c] on all ranks,
	// bitwise equal on each. Dst may be Src.
	AllReduce Kind = iota + 1
	// Broadcast copies Src [c] of Root to Dst [c] of all ranks. On Root, Dst
	// may be Src; elsewhere Src is not there.
	Broadcast
	// Reduce combines Src [c] of all ranks into Dst [c] on Root, where Dst may be
	// Src; elsewhere Dst is not there.
	Reduce
	// AllGather concatenates Src of all ranks in Dst of all ranks: rank r
	// gives Counts[r] elements, or as many as every other where Counts is nil. Src
	// may be the rank's own part of Dst.
	AllGather
	// ReduceScatter combines Src [N·c] of all ranks and gives rank r the r-th
	// c elements in Dst [c], which may be the rank's own part of Src.
	ReduceScatter
	// Gather concatenates Src [c] of all ranks in Dst [N·c] on Root, where Src may be
	// Root's part of Dst.
	Gather
	// Scatter gives rank r the r-th c elements of Src [N·c] of Root in Dst [c], which on
	// Root may be its part of Src.
	Scatter
	// AllToAll gives rank r's Dst [N·c], at its s-th c elements, the r-th c
	// elements of rank s's Src [N·c]. Dst and Src share no memory.
	AllToAll
	// Barrier ends when all ranks have started it.
	Barrier
	// Send sends Src to rank Root, which must Recv as many elements.
	Send
	// Recv receives Dst from rank Root.
	Recv
	// Group is several calls, Calls, started as one: their order among each
	// other does not matter, and they end together.
	Group
)

var kinds = [...]string{
	AllReduce: "AllReduce", Broadcast: "Broadcast", Reduce: "Reduce", AllGather: "AllGather", ReduceScatter: "ReduceScatter",
	Gather: "Gather", Scatter: "Scatter", AllToAll: "AllToAll", Barrier: "Barrier", Send: "Send", Recv: "Recv", Group: "Group",
}

func (k Kind) String() string {
	if k == 0 || int(k) >= len(kinds) {
		return fmt.Sprintf("kind(%d)", uint8(k))
	}
	return kinds[k]
}

// Rooted tells whether a call of this kind has a root rank, or a peer.
func (k Kind) Rooted() bool {
	switch k {
	case Broadcast, Reduce, Gather, Scatter, Send, Recv:
		return true
	}
	return false
}

// Reduces tells whether a call of this kind combines elements.
func (k Kind) Reduces() bool { return k == AllReduce || k == Reduce || k == ReduceScatter }

// ReduceOp is how elements of several ranks are combined. The numbers are
// part of the wire format.
type ReduceOp uint8

// The reductions. Avg is the sum, times 1/N at the end; on integers it is the
// sum divided by N, towards zero. PreMulSum, of floating-point types alone, is
// the sum of each rank's elements times its Call.Factor; factors and products are
// rounded to the type.
const (
	Sum ReduceOp = iota
	Avg
	Min
	Max
	Product
	PreMulSum
)

func (o ReduceOp) String() string {
	if names := [...]string{"sum", "avg", "min", "max", "product", "premulsum"}; int(o) < len(names) {
		return names[o]
	}
	return fmt.Sprintf("reduction(%d)", uint8(o))
}

// Call is one operation as one rank starts it. The Kind's comment says which
// of Dst and Src are there and how long they are.
type Call struct {
	Seq      uint64 // number of the call within its group; Send and Recv have a numbering of their own
	Kind     Kind
	Op       ReduceOp
	Factor   float64 // of PreMulSum: this rank's own, so no part of the fingerprint
	Dst, Src device.Tensor
	Counts   []int // AllGather of uneven sizes: elements that each rank gives
	Root     int   // the root, or the peer of Send and Recv
	Calls    []*Call
	Name     string        // what the caller calls it, such as "bucket 3"; for people
	Timeout  time.Duration // for whoever watches the call: a backend does not look at it
	After    device.Event  // Src is ready, and Dst free, at this event; nil: now
	Observer Observer      // nil: nobody
}

// DType is the element type of the call's data, Invalid when it has none.
func (c *Call) DType() device.DType {
	if c.Src.IsZero() {
		return c.Dst.DType
	}
	return c.Src.DType
}

// Count is the number of elements by which the call's size is known on every
// rank: the count c of the Kind's comment, or the sum of Counts.
func (c *Call) Count() int {
	switch c.Kind {
	case Broadcast, Recv, Scatter, ReduceScatter:
		return c.Dst.Len()
	case AllGather:
		if c.Counts != nil {
			return c.Dst.Len()
		}
	case AllToAll:
		return c.Src.Len()
	case Group:
		n := 0
		for _, g := range c.Calls {
			n += g.Count()
		}
		return n
	}
	return c.Src.Len()
}

// Fingerprint is what must be equal on all ranks that take part in a call.
type Fingerprint struct {
	Seq   uint64
	Kind  Kind
	Op    ReduceOp
	DType device.DType
	Count int
	Root  int
}

// Fingerprint is the call's own.
func (c *Call) Fingerprint() Fingerprint {
	f := Fingerprint{Seq: c.Seq, Kind: c.Kind, DType: c.DType(), Count: c.Count()}
	if c.Kind.Reduces() {
		f.Op = c.Op
	}
	if c.Kind.Rooted() {
		f.Root = c.Root
	}
	return f
}

// InJob is f, of a group with these members, with the root as the job numbers it.
func (f Fingerprint) InJob(members []int) Fingerprint {
	if f.Kind.Rooted() && f.Root >= 0 && f.Root < len(members) {
		f.Root = members[f.Root]
	}
	return f
}

func (f Fingerprint) String() string {
	var b strings.Builder
	b.WriteString(f.Kind.String())
	if f.Seq > 0 { // else it was refused before it got a number
		fmt.Fprintf(&b, " #%d", f.Seq)
	}
	if f.Kind == Barrier || f.Kind == Group {
		return b.String()
	}
	b.WriteByte('(')
	if f.Kind.Reduces() {
		fmt.Fprintf(&b, "%v, ", f.Op)
	}
	fmt.Fprintf(&b, "%v, %d elements", f.DType, f.Count)
	switch {
	case f.Kind == Send:
		fmt.Fprintf(&b, ", to rank %d", f.Root)
	case f.Kind == Recv:
		fmt.Fprintf(&b, ", from rank %d", f.Root)
	case f.Kind.Rooted():
		fmt.Fprintf(&b, ", root %d", f.Root)
	}
	b.WriteByte(')')
	return b.String()
}

func (c *Call) String() string {
	if c.Name != "" {
		return c.Fingerprint().String() + " " + c.Name
	}
	return c.Fingerprint().String()
}
