package host

import (
	"fmt"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
)

// pattern says who gives what to whom in a collective. Every kind but Barrier
// is one of these; what is left to an algorithm is how the bytes travel.
type pattern struct {
	rootGives bool // Root alone gives, else every rank does
	rootTakes bool // Root alone takes, else every rank does
	scatters  bool // a giver's Src is N blocks, the r-th for rank r; else one block for all
	gathers   bool // a taker's Dst is N blocks, the s-th from rank s; else one block
	reduces   bool // a taker combines the givers' blocks into one
}

var patterns = [...]pattern{
	backend.AllReduce:     {reduces: true},
	backend.Broadcast:     {rootGives: true},
	backend.Reduce:        {rootTakes: true, reduces: true},
	backend.AllGather:     {gathers: true},
	backend.ReduceScatter: {scatters: true, reduces: true},
	backend.Gather:        {rootTakes: true, gathers: true},
	backend.Scatter:       {rootGives: true, scatters: true},
	backend.AllToAll:      {scatters: true, gathers: true},
	backend.Barrier:       {},
}

// plan is a collective as one rank sees it: its pattern, and where the blocks
// lie. Offsets and lengths are bytes unless said otherwise.
type plan struct {
	pattern
	call       *backend.Call
	blocks     *blocks
	print      backend.Fingerprint
	rank, size int
	members    []int // the job's numbers of the ranks
	dtype      device.DType
	src, dst   []byte
	block      int   // length of a block, of the longest where they are uneven
	offsets    []int // where block s of Dst begins, and the end of the last, where they are uneven
}

func newPlan(c *backend.Call, rank int, members []int, b *blocks) *plan {
	size := len(members)
	p := &plan{
		pattern: patterns[c.Kind], call: c, blocks: b, print: c.Fingerprint(), rank: rank, size: size, members: members, dtype: c.DType(),
		src: hostBytes(c, c.Src), dst: hostBytes(c, c.Dst),
	}
	p.block = p.print.Count * p.dtype.Size()
	switch {
	case c.Kind == backend.AllToAll:
		p.block /= size
	case c.Counts != nil:
		p.block, p.offsets = 0, make([]int, size+1)
		for s, n := range c.Counts {
			n *= p.dtype.Size()
			p.offsets[s+1] = p.offsets[s] + n
			p.block = max(p.block, n)
		}
	}
	return p
}

// premultiply does what comes before the sum of a PreMulSum: this rank
// multiplies what it gives, into Dst where that is as long, else into memory of
// its own. It costs a pass over Src, and the others need not know the factor.
func (p *plan) premultiply() {
	if p.call.Op != backend.PreMulSum || !p.reduces || len(p.src) == 0 {
		return
	}
	scaled := p.call.Dst
	if p.scatters || p.rootTakes {
		scaled = device.NewTensor(goBuffer(len(p.src)), p.dtype, p.call.Src.Len())
	}
	into := hostBytes(p.call, scaled)
	p.blocks.multiply(into, p.src, p.dtype, p.call.Factor)
	c := *p.call
	c.Src = scaled
	p.call, p.src = &c, into
}

// MemoryError is the panic of Start for a tensor that is not in host memory.
type MemoryError struct {
	Call   backend.Fingerprint
	Tensor device.Tensor
}

func (e *MemoryError) Error() string {
	return fmt.Sprintf("%v: the host cannot address its %v", e.Call, e.Tensor)
}

// hostBytes is the memory of t, nil for an operand that is not there.
func hostBytes(c *backend.Call, t device.Tensor) []byte {
	n := t.Bytes()
	if n == 0 {
		return nil
	}
	if t.Buf.Host() == nil {
		panic(&MemoryError{Call: c.Fingerprint(), Tensor: t})
	}
	return t.Buf.Host()[:n]
}

func (p *plan) gives(rank int) bool {
	return p.block > 0 && (!p.rootGives || rank == p.call.Root)
}

func (p *plan) takes(rank int) bool {
	return p.block > 0 && (!p.rootTakes || rank == p.call.Root)
}

// given is how many blocks there are in a giver's Src.
func (p *plan) given() int {
	if p.scatters {
		return p.size
	}
	return 1
}

// payload is the size of a giver's Src, of the longest where they are uneven.
func (p *plan) payload() int { return p.block * p.given() }

// width is the length of the blocks that rank s gives.
func (p *plan) width(s int) int {
	if p.offsets != nil {
		return p.offsets[s+1] - p.offsets[s]
	}
	return p.block
}

// source is the range of s's Src that holds bytes [lo, hi) of the block for
// rank r, cut off where that block ends.
func (p *plan) source(s, r, lo, hi int) (from, to int) {
	at, w := 0, p.width(s)
	if p.scatters {
		at = r * p.block
	}
	return at + min(lo, w), at + min(hi, w)
}

// place is the range of Dst for bytes [lo, hi) of the block that s gives.
func (p *plan) place(s, lo, hi int) []byte {
	at, w := 0, p.width(s)
	switch {
	case p.gathers && p.offsets != nil:
		at = p.offsets[s]
	case p.gathers:
		at = s * p.block
	}
	return p.dst[at+min(lo, w) : at+min(hi, w)]
}

// take makes bytes [lo, hi) of every block of this rank's Dst, where from(s)
// is that range of the block that rank s gives to this rank. A reduction is
// done in rank order.
func (p *plan) take(lo, hi int, from func(s int) []byte) {
	if !p.takes(p.rank) {
		return
	}
	if p.reduces {
		srcs := make([][]byte, p.size)
		for s := range srcs {
			srcs[s] = from(s)
		}
		p.reduce([][]byte{p.place(p.rank, lo, hi)}, srcs, p.call.Op)
		return
	}
	for s := range p.size {
		if p.gives(s) {
			move(p.place(s, lo, hi), from(s))
		}
	}
}

// reduce combines srcs, in their order, in every one of dsts.
func (p *plan) reduce(dsts, srcs [][]byte, op backend.ReduceOp) {
	p.blocks.reduce(dsts, srcs, p.dtype, op, p.size)
}

// move copies, unless both are the same memory: a peer may be reading it.
func move(dst, src []byte) {
	if len(src) > 0 && &dst[0] != &src[0] {
		copy(dst, src)
	}
}

// split is part i of n of [0, length), in bytes, cut between elements of the
// given size; the parts differ by at most one element.
func split(length, i, n, elem int) (lo, hi int) {
	count := length / max(elem, 1)
	return count * i / n * elem, count * (i + 1) / n * elem
}
