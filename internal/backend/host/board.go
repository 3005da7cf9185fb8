package host

import (
	"errors"
	"runtime"
)

// board is where ranks that can reach each other's memory meet. Ranks pass
// gates: a rank arrives at its next gate and then waits until all ranks have.
// What a rank wrote before it arrived is seen by all behind that gate.
//
// A rank is at most one gate ahead of another, so what is written for one
// gate and read behind it can be overwritten before the gate after the next
// but one: two copies of everything are enough.
type board interface {
	// post shows c, of this rank's next collective, and arrives. The payload
	// is copied.
	post(c card)
	arrive()
	// await waits until every rank has arrived as often as this one. Its error
	// is that the group broke, here or on a rank whose memory this one may have
	// read: the program there may have changed it since.
	await() error
	// card is the one that a rank posted for the collective under way. It is
	// valid until this rank's next call but one.
	card(rank int) (card, error)
	// reach sets r.mem, n bytes of a rank's memory, to where this rank
	// addresses it, nil where not all ranks can. r.owner keeps it mapped.
	reach(rank int, r *ref, n int) error
	// scratch is memory of a rank's that all ranks reach, of four pieces.
	scratch(rank int) []byte
}

// table runs collectives among the ranks at a board.
type table struct {
	board
	rank, size int
}

// run does a collective. All ranks show their cards first: one gate. That is
// all for a small one, whose data is on the cards:
//
//	steps: 1
//	bytes read: N·S, where S is what each rank gives
func (t *table) run(p *plan) error {
	t.post(p.card())
	if err := t.await(); err != nil {
		return err
	}
	cards := make([]card, t.size)
	for s := range cards {
		var err error
		if cards[s], err = t.card(s); err != nil {
			return err
		}
	}
	if err := p.check(cards); err != nil {
		return err
	}
	if p.inlines() {
		p.take(0, p.block, func(s int) []byte {
			from, to := p.source(s, t.rank, 0, p.block)
			return cards[s].payload[from:to]
		})
		return nil
	}
	defer runtime.KeepAlive(cards)
	for s := range cards {
		c := &cards[s]
		if err := errors.Join(t.reach(s, &c.src, c.given), t.reach(s, &c.dst, c.given)); err != nil {
			return err
		}
	}
	switch {
	case p.direct(cards):
		return t.direct(p, cards)
	case p.shares():
		return t.stagedReduce(p)
	default:
		return t.staged(p)
	}
}

func (t *table) gate() error {
	t.arrive()
	return t.await()
}

// shares tells whether the ranks divide the reduction of each block between
// them, because several want the same result or only one wants any.
func (p *plan) shares() bool { return p.reduces && !p.scatters }

// direct tells whether this rank can read what every rank gives where it
// lies and, when a reduction is shared, write what every rank takes.
func (p *plan) direct(cards []card) bool {
	for s, c := range cards {
		if p.gives(s) && c.given > 0 && c.src.mem == nil {
			return false
		}
		if p.shares() && p.takes(s) && c.dst.mem == nil {
			return false
		}
	}
	return true
}

// direct moves the data from where it lies to where it belongs. Every rank
// takes what is for it; a shared reduction is cut in N chunks, rank r reduces
// the r-th from all ranks' memory and stores it in the memory of all that
// want it. So every element is combined once, in rank order, and a rank
// touches others' memory in the r-th chunk alone: Dst may be Src.
//
//	steps: 2 gates, the cards' included
//	bytes, AllReduce: each rank reads S and writes S
func (t *table) direct(p *plan, cards []card) error {
	if p.shares() {
		lo, hi := split(p.block, t.rank, t.size, p.dtype.Size())
		var srcs, dsts [][]byte
		for s, c := range cards {
			srcs = append(srcs, c.src.mem[lo:hi])
			if p.takes(s) {
				dsts = append(dsts, c.dst.mem[lo:hi])
			}
		}
		p.reduce(dsts, srcs, p.call.Op)
	} else {
		p.take(0, p.block, func(s int) []byte {
			from, to := p.source(s, t.rank, 0, p.block)
			return cards[s].src.mem[from:to]
		})
	}
	return t.gate()
}

// pieceBytes is how much of a rank's Src is staged at a time. Two pieces that
// come in and two that go out, of every rank, should stay in the caches.
const pieceBytes = 256 << 10

// in and out are the pieces of a rank's scratch for step i.
func (t *table) in(rank, i int) []byte  { return t.scratch(rank)[i%2*pieceBytes:][:pieceBytes] }
func (t *table) out(rank, i int) []byte { return t.scratch(rank)[(2+i%2)*pieceBytes:][:pieceBytes] }

// staged moves data that the peers cannot reach through scratch memory, piece
// by piece: while piece i+1 is copied in, piece i is taken.
//
//	steps: S/piece + 1 gates, the cards' included
//	bytes: each rank copies what it gives once more than direct does
func (t *table) staged(p *plan) error {
	elem := p.dtype.Size()
	piece := pieceBytes / p.given() / elem * elem
	n := (p.block + piece - 1) / piece
	for i := range n + 1 {
		if i < n && p.gives(t.rank) {
			lo, hi := i*piece, min((i+1)*piece, p.block)
			for b := range p.given() {
				from, to := p.source(t.rank, b, lo, hi)
				copy(t.in(t.rank, i)[b*(hi-lo):], p.src[from:to])
			}
		}
		if i > 0 {
			lo, hi := (i-1)*piece, min(i*piece, p.block)
			p.take(lo, hi, func(s int) []byte {
				from, to := p.source(s, t.rank, lo, hi)
				at := 0
				if p.scatters {
					at = t.rank * (hi - lo)
				}
				return t.in(s, i-1)[at : at+to-from]
			})
		}
		if i < n {
			if err := t.gate(); err != nil {
				return err
			}
		}
	}
	return nil
}

// stagedReduce is staged for a shared reduction, in three stages: while piece
// i+2 is copied in, each rank reduces its part of piece i+1, and those that
// take the result copy out piece i.
//
//	steps: S/piece + 2 gates, the cards' included
//	bytes, AllReduce: each rank reads 3·S and writes 2·S + S/N, in caches but
//	for S read and S written
func (t *table) stagedReduce(p *plan) error {
	elem := p.dtype.Size()
	n := (p.block + pieceBytes - 1) / pieceBytes
	bounds := func(i int) (lo, hi int) { return i * pieceBytes, min((i+1)*pieceBytes, p.block) }
	srcs := make([][]byte, t.size)
	for i := range n + 2 {
		if i < n {
			lo, hi := bounds(i)
			copy(t.in(t.rank, i), p.src[lo:hi])
		}
		if j := i - 1; 0 <= j && j < n {
			lo, hi := bounds(j)
			from, to := split(hi-lo, t.rank, t.size, elem)
			for s := range srcs {
				srcs[s] = t.in(s, j)[from:to]
			}
			p.reduce([][]byte{t.out(t.rank, j)[from:to]}, srcs, p.call.Op)
		}
		if j := i - 2; j >= 0 && p.takes(t.rank) {
			lo, hi := bounds(j)
			for s := range t.size {
				from, to := split(hi-lo, s, t.size, elem)
				copy(p.dst[lo+from:lo+to], t.out(s, j)[from:to])
			}
		}
		if i < n+1 {
			if err := t.gate(); err != nil {
				return err
			}
		}
	}
	return nil
}
