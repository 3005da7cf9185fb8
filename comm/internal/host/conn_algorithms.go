package host

import (
	"slices"

	"github.com/goddp/goddp/internal/backend"
)

// halving is AllReduce, ReduceScatter or AllGather in rounds (recursive halving and doubling). In a
// reduction, rank r reduces block r. Before a round, rank r holds partial sums of blocks r, r+1 and so
// on. It sends the last half of these blocks to the rank that owns the first block of that half. The
// blocks are then gathered in the reverse order of rounds.
//
//	steps: log2 N, rounded up; twice that for AllReduce
//	bytes sent: (N-1)/N·S for ReduceScatter, (N-1)·S for AllGather, 2(N-1)/N·S for AllReduce
//
// A block is reduced once, in the order given by rounds, and then copied. A 16-bit float is rounded
// after every round.
func (cc *connCollectives) halving(p *plan) error {
	switch p.call.Kind {
	case backend.AllGather:
		move(p.dstRange(p.rank, 0, p.maxBlock), p.src)
		return cc.gather(p, p.dst, func(b int) int {
			if p.offsets != nil {
				return p.offsets[b]
			}
			return b * p.maxBlock
		})
	case backend.ReduceScatter:
		sums := make([]byte, len(p.src))
		at := func(b int) int { return b * p.maxBlock }
		if err := cc.reduceScatter(p, sums, at); err != nil {
			return err
		}
		copy(p.dst, sums[at(p.rank):at(p.rank+1)])
		return nil
	}
	at := func(b int) int { lo, _ := split(p.maxBlock, b, p.size, p.dtype.Size()); return lo }
	if err := cc.reduceScatter(p, p.dst, at); err != nil {
		return err
	}
	if err := cc.awaitSent(cc.started); err != nil { // gather overwrites what was sent
		return err
	}
	return cc.gather(p, p.dst, at)
}

// parts returns the memory of blocks lo, ... hi-1 of mem, counted from this rank's: one part, or two
// if the last block lies between them. Block b begins at at(b).
func (p *plan) parts(mem []byte, lo, hi int, at func(b int) int) [][]byte {
	lo, hi = lo+p.rank, hi+p.rank
	switch {
	case lo >= p.size:
		return [][]byte{mem[at(lo-p.size):at(hi-p.size)]}
	case hi <= p.size:
		return [][]byte{mem[at(lo):at(hi)]}
	}
	return [][]byte{mem[at(lo):at(p.size)], mem[:at(hi-p.size)]}
}

// reduceScatter reduces block r of Src on rank r, into sums. It does not change Src, and uses all of
// sums.
func (cc *connCollectives) reduceScatter(p *plan, sums []byte, at func(b int) int) error {
	op, theirs := partial(p.call.Op), cc.scratch(segmentBytes)
	mem, summed := p.src, 0 // counted from this rank's block, the first summed blocks are in sums, the others in Src
	steps := rounds(p.size)
	for i, r := range slices.Backward(steps) {
		cut := min(max(summed, r.lo), r.hi)
		for _, part := range slices.Concat(p.parts(sums, r.lo, cut, at), p.parts(p.src, cut, r.hi, at)) {
			cc.send((p.rank+r.lo)%p.size, part)
		}
		if i == 0 {
			op = p.call.Op // the last of n operands: Avg divides now
		}
		into, from := p.parts(sums, 0, r.blocks(), at), p.parts(mem, 0, r.blocks(), at)
		for k := range into {
			for lo := 0; lo < len(into[k]); lo += segmentBytes {
				hi := min(lo+segmentBytes, len(into[k]))
				if err := cc.recv((p.rank+p.size-r.lo)%p.size, theirs[:hi-lo]); err != nil {
					return err
				}
				p.reduce([][]byte{into[k][lo:hi]}, [][]byte{theirs[:hi-lo], from[k][lo:hi]}, op)
			}
		}
		mem, summed = sums, max(summed, r.blocks())
	}
	return nil
}

// gather distributes all blocks to all ranks. Each rank has its own block in mem.
func (cc *connCollectives) gather(p *plan, mem []byte, at func(b int) int) error {
	steps, sent, have := rounds(p.size), 0, 1
	for _, r := range steps {
		for ; sent < len(steps) && steps[sent].blocks() <= have; sent++ {
			s := steps[sent]
			for _, part := range p.parts(mem, 0, s.blocks(), at) {
				cc.send((p.rank+p.size-s.lo)%p.size, part)
			}
		}
		for _, part := range p.parts(mem, r.lo, r.hi, at) {
			if err := cc.recv((p.rank+r.lo)%p.size, part); err != nil {
				return err
			}
		}
		have = r.hi
	}
	return nil
}

// ring is the ring AllReduce. There are N chunks. Each is sent around the ring twice: first every
// rank adds its part, then every rank receives the result. A chunk is sent in segments, so that one
// segment is reduced while the next arrives.
//
//	steps: 2(N-1) + the number of segments of a chunk
//	bytes sent: 2(N-1)/N·S
//
// Chunk c is reduced once, in the order of ranks c, c+1, ... c-1, and the result is copied, so all
// ranks have bit-identical results. A 16-bit float is rounded after every addition.
func (cc *connCollectives) ring(p *plan) error {
	n, elem := p.size, p.dtype.Size()
	next, prev := (p.rank+1)%n, (p.rank+n-1)%n
	segs := max(1, (p.maxBlock/n+segmentBytes-1)/segmentBytes)
	theirs := cc.scratch(segmentBytes + 2*elem)
	// part returns segment i%segs of the chunk that this rank sends in step i/segs. The rank
	// received that chunk in the step before.
	part := func(mem []byte, i int) []byte {
		chunk := (p.rank - i/segs + 2*n) % n
		lo, hi := split(p.maxBlock, chunk, n, elem)
		from, to := split(hi-lo, i%segs, segs, elem)
		return mem[lo+from : lo+to]
	}
	before := cc.started
	for i := range segs {
		cc.send(next, part(p.src, i))
	}
	half := (n - 1) * segs // steps of the first time around
	for i := range 2 * half {
		got := part(p.dst, i+segs)
		if i < half {
			theirs := theirs[:len(got)]
			if err := cc.recv(prev, theirs); err != nil {
				return err
			}
			op := partial(p.call.Op)
			if i >= half-segs {
				op = p.call.Op // the last of n operands: Avg divides now
			}
			p.reduce([][]byte{got}, [][]byte{theirs, part(p.src, i+segs)}, op)
		} else {
			if err := cc.awaitSent(before + i - half + 1); err != nil { // got was sent then
				return err
			}
			if err := cc.recv(prev, got); err != nil {
				return err
			}
		}
		if i+segs < 2*half {
			cc.send(next, part(p.dst, i+segs))
		}
	}
	return nil
}

// tree is Broadcast down a tree of ranks or Reduce up the tree, one segment at a time.
//
//	steps: the depth of the tree - 1 + the number of segments
//	bytes sent: Broadcast, S to each child; Reduce, S to the parent
//
// In a Reduce, each rank adds its own data and its children's, in this order. A 16-bit float is
// rounded on every rank.
func (cc *connCollectives) tree(p *plan, r relatives) error {
	if p.reduces {
		return cc.reduceUp(p, r)
	}
	mem := p.dst
	if r.parent < 0 {
		mem = p.src
	}
	for lo := 0; lo < p.maxBlock; lo += segmentBytes {
		part := mem[lo:min(lo+segmentBytes, p.maxBlock)]
		if r.parent >= 0 {
			if err := cc.recv(r.parent, part); err != nil {
				return err
			}
		}
		for _, child := range r.children {
			cc.send(child, part)
		}
	}
	if r.parent < 0 {
		move(p.dst, p.src)
	}
	return nil
}

func (cc *connCollectives) reduceUp(p *plan, r relatives) error {
	srcs := make([][]byte, 1+len(r.children))
	theirs := cc.scratch((len(r.children) + 2) * segmentBytes)
	sums := theirs[len(r.children)*segmentBytes:] // sums of this segment, and of the previous one, which may still be in flight
	op := p.call.Op
	if r.parent >= 0 {
		op = partial(op)
	}
	for i, lo := 0, 0; lo < p.maxBlock; i, lo = i+1, lo+segmentBytes {
		hi := min(lo+segmentBytes, p.maxBlock)
		sum := p.src[lo:hi]
		if len(r.children) > 0 {
			srcs[0] = sum
			for k := range r.children { // the last child has the smallest subtree
				child := len(r.children) - 1 - k
				srcs[1+k] = theirs[child*segmentBytes:][:hi-lo]
				if err := cc.recv(r.children[child], srcs[1+k]); err != nil {
					return err
				}
			}
			if r.parent < 0 {
				sum = p.dst[lo:hi]
			} else {
				sum = sums[i%2*segmentBytes:][:hi-lo]
				if err := cc.awaitSent(cc.started - 1); err != nil { // the segment before the last
					return err
				}
			}
			p.reduce([][]byte{sum}, srcs, op)
		}
		if r.parent >= 0 {
			cc.send(r.parent, sum)
		}
	}
	return nil
}

// pairwise exchanges blocks between all pairs of ranks: in step i, rank r sends to rank r+i and
// receives from rank r-i. Reductions are computed on the receiving rank, piece by piece, in the
// order of the ranks.
//
//	steps: N-1 for each piece, which do not wait for each other
//	bytes sent: (N-1)/N·S for AllToAll and ReduceScatter, S to a root
func (cc *connCollectives) pairwise(p *plan) error {
	piece, theirs := p.maxBlock, []byte(nil)
	if p.reduces {
		piece = min(piece, segmentBytes)
		theirs = cc.scratch(p.size * piece)
	} else if p.hasSrc(p.rank) && p.hasDst(p.rank) {
		from, to := p.srcRange(p.rank, p.rank, 0, p.maxBlock)
		move(p.dstRange(p.rank, 0, p.maxBlock), p.src[from:to])
	}
	for lo := 0; lo < p.maxBlock; lo += piece {
		hi := min(lo+piece, p.maxBlock)
		for distance := 1; distance < p.size; distance++ {
			to := (p.rank + distance) % p.size
			if p.hasSrc(p.rank) && p.hasDst(to) {
				from, end := p.srcRange(p.rank, to, lo, hi)
				cc.send(to, p.src[from:end])
			}
		}
	}
	for lo := 0; lo < p.maxBlock; lo += piece {
		hi := min(lo+piece, p.maxBlock)
		mine := func(s int) []byte { // memory that holds, or receives, the block of rank s
			switch {
			case s == p.rank:
				from, to := p.srcRange(s, s, lo, hi)
				return p.src[from:to]
			case p.reduces:
				return theirs[s*piece:][:hi-lo]
			}
			return p.dstRange(s, lo, hi)
		}
		for distance := 1; distance < p.size; distance++ {
			from := (p.rank + p.size - distance) % p.size
			if p.hasSrc(from) && p.hasDst(p.rank) {
				if err := cc.recv(from, mine(from)); err != nil {
					return err
				}
			}
		}
		if p.reduces {
			p.fillDst(lo, hi, mine)
		}
	}
	return nil
}
