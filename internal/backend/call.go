package backend

import (
	"fmt"
	"strings"
	"time"

	"github.com/goddp/goddp/device"
)

// Kind is the operation of a call. The numbers are part of the wire format.
type Kind uint8

// The operations. N is the size of the group; counts in brackets are elements. A tensor that a rank
// does not need is the zero Tensor.
const (
	// AllReduce combines Src [c] of all ranks into Dst [c] on all ranks. The results are bitwise
	// equal. Dst may be Src.
	AllReduce Kind = iota + 1
	// Broadcast copies Src [c] of Root to Dst [c] of all ranks. On Root, Dst may be Src. The other
	// ranks have no Src.
	Broadcast
	// Reduce combines Src [c] of all ranks into Dst [c] on Root, where Dst may be Src. The other
	// ranks have no Dst.
	Reduce
	// AllGather concatenates Src of all ranks in Dst of all ranks. Rank r gives Counts[r] elements;
	// if Counts is nil, all ranks give equally many. Src may be the rank's own part of Dst.
	AllGather
	// ReduceScatter combines Src [N·c] of all ranks and gives rank r the r-th c elements in Dst
	// [c]. Dst may be the rank's own part of Src.
	ReduceScatter
	// Gather concatenates Src [c] of all ranks in Dst [N·c] on Root. On Root, Src may be its own
	// part of Dst.
	Gather
	// Scatter gives rank r the r-th c elements of Root's Src [N·c] in Dst [c]. On Root, Dst may be
	// its own part of Src.
	Scatter
	// AllToAll copies the r-th c elements of rank s's Src [N·c] to the s-th c elements of rank r's
	// Dst [N·c], for all r and s. Dst and Src must not share memory.
	AllToAll
	// Barrier ends when all ranks have started it.
	Barrier
	// Send sends Src to rank Root, which must receive equally many elements.
	Send
	// Recv receives Dst from rank Root.
	Recv
	// Group starts several calls, Calls, as one. They have no order among each other and end
	// together.
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

// Rooted reports whether calls of this kind have a root rank or a peer.
func (k Kind) Rooted() bool {
	switch k {
	case Broadcast, Reduce, Gather, Scatter, Send, Recv:
		return true
	}
	return false
}

// Reduces reports whether calls of this kind combine elements.
func (k Kind) Reduces() bool { return k == AllReduce || k == Reduce || k == ReduceScatter }

// ReduceOp is a reduction. The numbers are part of the wire format.
type ReduceOp uint8

// The reductions. Avg is the sum times 1/N; for integers it is the sum divided by N, rounded
// towards zero. PreMulSum is for floating-point types only: it sums each rank's elements times that
// rank's Call.Factor. Factors and products are rounded to the element type.
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

// Call is one operation as one rank starts it. The comment of its Kind says which of Dst and Src
// are present and how long they are.
type Call struct {
	Seq      uint64 // number of the call within its group; Send and Recv are numbered separately
	Kind     Kind
	Op       ReduceOp
	Factor   float64 // this rank's factor of PreMulSum; not part of the fingerprint
	Dst, Src device.Tensor
	Counts   []int // AllGather of uneven sizes: the number of elements of each rank
	Root     int   // the root, or the peer of Send and Recv
	Calls    []*Call
	Name     string        // the caller's name for it, such as "bucket 3", for messages
	Timeout  time.Duration // enforced by comm's watchdog; backends ignore it
	After    device.Event  // the call must not touch Src and Dst before this event; nil if it may begin at once
	Timed    bool          // events of the call record times, which cost a GPU's stream some microseconds
	Observer Observer      // may be nil
}

// DType returns the element type of the call's data, or Invalid if the call has none.
func (c *Call) DType() device.DType {
	if c.Src.IsZero() {
		return c.Dst.DType
	}
	return c.Src.DType
}

// Count returns the size of the call in elements, as all ranks know it: the count c in the comment
// of its Kind, or the sum of Counts.
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

// Fingerprint is the part of a call that must be equal on all ranks that take part.
type Fingerprint struct {
	Seq   uint64
	Kind  Kind
	Op    ReduceOp
	DType device.DType
	Count int
	Root  int
}

// Fingerprint returns the call's fingerprint.
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

// InJob returns f with its root converted to a rank in the job. members are the group's ranks in the job.
func (f Fingerprint) InJob(members []int) Fingerprint {
	if f.Kind.Rooted() && f.Root >= 0 && f.Root < len(members) {
		f.Root = members[f.Root]
	}
	return f
}

func (f Fingerprint) String() string {
	var b strings.Builder
	b.WriteString(f.Kind.String())
	if f.Seq > 0 { // a call that comm rejected has no number
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
