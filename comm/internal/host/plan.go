package host

import (
	"fmt"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
)

// pattern describes which ranks send data to which in a collective, for every kind except Barrier.
// An algorithm decides only how the bytes are sent.
type pattern struct {
	onlyRootGives bool // only Root has a Src; otherwise every rank has one
	onlyRootTakes bool // only Root has a Dst; otherwise every rank has one
	scatters      bool // Src has N blocks, the r-th for rank r; otherwise one block for all ranks
	gathers       bool // Dst has N blocks, the s-th from rank s; otherwise one block
	reduces       bool // Dst is the reduction of the blocks of all ranks
}

var patterns = [...]pattern{
	backend.AllReduce:     {reduces: true},
	backend.Broadcast:     {onlyRootGives: true},
	backend.Reduce:        {onlyRootTakes: true, reduces: true},
	backend.AllGather:     {gathers: true},
	backend.ReduceScatter: {scatters: true, reduces: true},
	backend.Gather:        {onlyRootTakes: true, gathers: true},
	backend.Scatter:       {onlyRootGives: true, scatters: true},
	backend.AllToAll:      {scatters: true, gathers: true},
	backend.Barrier:       {},
}

// plan is a collective as one rank executes it: its pattern and the positions of its blocks.
// Offsets and lengths are in bytes unless said otherwise.
type plan struct {
	pattern
	call        *backend.Call
	scratch     *reduceScratch
	fingerprint backend.Fingerprint
	rank, size  int
	members     []int // each rank's number in the job
	dtype       device.DType
	src, dst    []byte
	maxBlock    int   // length of a block; if lengths differ, of the longest
	operands    int   // number of operands of each element of a reduction
	inlineLimit int   // the largest Src that is sent in the header
	offsets     []int // if the blocks differ in length: the start of each block of Dst, and the end of the last block; else nil
}

func newPlan(c *backend.Call, rank int, members []int, b *reduceScratch) *plan {
	size := len(members)
	p := &plan{
		pattern: patterns[c.Kind], call: c, scratch: b, fingerprint: c.Fingerprint(), rank: rank, size: size, members: members, dtype: c.DType(),
		operands: size, inlineLimit: maxInline,
		src: hostBytes(c, c.Src), dst: hostBytes(c, c.Dst),
	}
	p.maxBlock = p.fingerprint.Count * p.dtype.Size()
	switch {
	case c.Kind == backend.AllToAll:
		p.maxBlock /= size
	case c.Counts != nil:
		p.maxBlock, p.offsets = 0, make([]int, size+1)
		for s, n := range c.Counts {
			n *= p.dtype.Size()
			p.offsets[s+1] = p.offsets[s] + n
			p.maxBlock = max(p.maxBlock, n)
		}
	}
	return p
}

// premultiply multiplies this rank's Src by the factor of a PreMulSum. The collective can then run
// as a Sum, and the other ranks need not know the factor. The products are stored in Dst if it is
// as long as Src, else in new memory.
func (p *plan) premultiply() {
	if p.call.Op != backend.PreMulSum || !p.reduces || len(p.src) == 0 {
		return
	}
	scaled := p.call.Dst
	if p.scatters || p.onlyRootTakes {
		scaled = device.NewTensor(goBuffer(len(p.src)), p.dtype, p.call.Src.Len())
	}
	into := hostBytes(p.call, scaled)
	p.scratch.multiply(into, p.src, p.dtype, p.call.Factor)
	c := *p.call
	c.Src = scaled
	p.call, p.src = &c, into
}

// MemoryError is the panic value of Start for a tensor that is not in host memory.
type MemoryError struct {
	Call   backend.Fingerprint
	Tensor device.Tensor
}

func (e *MemoryError) Error() string {
	return fmt.Sprintf("%v: %v is not in host memory", e.Call, e.Tensor)
}

// hostBytes returns the memory of t, or nil if t has no elements. It panics if t is not in host
// memory.
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

func (p *plan) hasSrc(rank int) bool {
	return p.maxBlock > 0 && (!p.onlyRootGives || rank == p.call.Root)
}

func (p *plan) hasDst(rank int) bool {
	return p.maxBlock > 0 && (!p.onlyRootTakes || rank == p.call.Root)
}

// blocksPerSrc returns the number of blocks in a Src.
func (p *plan) blocksPerSrc() int {
	if p.scatters {
		return p.size
	}
	return 1
}

// srcBytes returns the length of a rank's Src; if lengths differ, of the longest.
func (p *plan) srcBytes() int { return p.maxBlock * p.blocksPerSrc() }

// blockLen returns the length of the blocks in rank s's Src.
func (p *plan) blockLen(s int) int {
	if p.offsets != nil {
		return p.offsets[s+1] - p.offsets[s]
	}
	return p.maxBlock
}

// srcRange returns the range of rank s's Src with bytes [lo, hi) of the block for rank r, cut at
// the end of the block.
func (p *plan) srcRange(s, r, lo, hi int) (from, to int) {
	at, w := 0, p.blockLen(s)
	if p.scatters {
		at = r * p.maxBlock
	}
	return at + min(lo, w), at + min(hi, w)
}

// dstRange returns the part of Dst for bytes [lo, hi) of the block from rank s.
func (p *plan) dstRange(s, lo, hi int) []byte {
	at, w := 0, p.blockLen(s)
	switch {
	case p.gathers && p.offsets != nil:
		at = p.offsets[s]
	case p.gathers:
		at = s * p.maxBlock
	}
	return p.dst[at+min(lo, w) : at+min(hi, w)]
}

// fillDst computes bytes [lo, hi) of every block of this rank's Dst. from(s) returns bytes [lo, hi)
// of the block that rank s sends to this rank. Reductions combine the blocks in the order of the
// ranks.
func (p *plan) fillDst(lo, hi int, from func(s int) []byte) {
	if !p.hasDst(p.rank) {
		return
	}
	if p.reduces {
		srcs := make([][]byte, p.size)
		for s := range srcs {
			srcs[s] = from(s)
		}
		p.reduce([][]byte{p.dstRange(p.rank, lo, hi)}, srcs, p.call.Op)
		return
	}
	for s := range p.size {
		if p.hasSrc(s) {
			move(p.dstRange(s, lo, hi), from(s))
		}
	}
}

// reduce combines srcs in their order and stores the result in each of dsts.
func (p *plan) reduce(dsts, srcs [][]byte, op backend.ReduceOp) {
	p.scratch.reduce(dsts, srcs, p.dtype, op, p.operands)
}

// move copies src to dst. If both are the same memory it does nothing, because a peer may be
// reading that memory.
func move(dst, src []byte) {
	if len(src) > 0 && &dst[0] != &src[0] {
		copy(dst, src)
	}
}

// split cuts [0, length) into n parts and returns part i. The cuts are between elements of elem
// bytes. The parts differ by at most one element.
func split(length, i, n, elem int) (lo, hi int) {
	count := length / max(elem, 1)
	return count * i / n * elem, count * (i + 1) / n * elem
}
