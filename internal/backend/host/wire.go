package host

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
)

// wire runs collectives over links, whatever they are made of.
type wire struct {
	group      *Group
	rank, size int
	links      []*link
	ctx        context.Context // the group's; while a relay runs, also ended by its first error
	reading    atomic.Int32    // the rank that data is awaited from, plus 1; 0: none
	writing    atomic.Int32    // the same of the rank that data is being sent to
	buf        []byte          // scratch, kept from call to call
}

// segmentBytes is the most that is sent before the receiver can work on it.
const segmentBytes = 128 << 10

// run does a collective. As at a board, all ranks show their cards first, and
// small data travels on them:
//
//	steps: 1
//	bytes sent: (N-1)·(S + the card)
func (w *wire) run(p *plan) error {
	cards, err := w.meet(p.card())
	if err != nil {
		return err
	}
	if err := p.check(cards); err != nil {
		return err
	}
	switch {
	case p.inlines():
		p.take(0, p.block, func(s int) []byte {
			from, to := p.source(s, w.rank, 0, p.block)
			return cards[s].payload[from:to]
		})
		return nil
	case p.shares() && !p.rootTakes:
		return w.ring(p)
	case p.rootGives && !p.scatters:
		return w.chain(p)
	default:
		return w.pairwise(p)
	}
}

// meet shows c to every peer and returns the cards of all.
func (w *wire) meet(c card) ([]card, error) {
	w.buf = append(w.buf[:0], make([]byte, cardSize)...)
	c.encode(w.buf)
	w.buf = append(w.buf, c.payload...)
	for i := 1; i < w.size; i++ {
		if err := w.write((w.rank+i)%w.size, w.buf); err != nil {
			return nil, err
		}
	}
	cards := make([]card, w.size)
	cards[w.rank] = c
	for i := 1; i < w.size; i++ {
		peer := (w.rank + i) % w.size
		head := make([]byte, cardSize)
		if err := w.read(peer, head); err != nil {
			return nil, err
		}
		got, payload := decodeCard(head)
		if payload < 0 || payload > inlineMax {
			return nil, fmt.Errorf("card of rank %d with a payload of %d bytes, at most %d", peer, payload, inlineMax)
		}
		got.payload = make([]byte, payload)
		if err := w.read(peer, got.payload); err != nil {
			return nil, err
		}
		cards[peer] = got
	}
	return cards, nil
}

func (w *wire) write(peer int, p []byte) error {
	w.writing.Store(int32(peer) + 1)
	defer w.writing.Store(0)
	if _, err := w.links[peer].conns[laneBulk].Write(p); err != nil {
		return w.group.lost(w.ctx, peer, err)
	}
	return nil
}

func (w *wire) read(peer int, p []byte) error {
	w.reading.Store(int32(peer) + 1)
	defer w.reading.Store(0)
	if _, err := io.ReadFull(w.links[peer].conns[laneBulk], p); err != nil {
		return w.group.lost(w.ctx, peer, err)
	}
	return nil
}

func (w *wire) missing() (ranks []int) {
	for _, peer := range []int32{w.reading.Load(), w.writing.Load()} {
		if r := int(peer) - 1; r >= 0 && !slices.Contains(ranks, r) {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// interrupt makes blocked reads and writes return.
func (w *wire) interrupt() {
	for _, l := range w.links {
		if l != nil {
			l.interrupt(laneBulk)
		}
	}
}

// flow is one direction of a transfer: do(i) for every i below n, in order,
// each as soon as the other direction has done after(i) of its own; a nil
// after waits for nothing.
type flow struct {
	n     int
	do    func(i int) error
	after func(i int) int
}

// relay runs two flows at once, so that two ranks that send to each other do
// not wait for each other. When one fails the other one is interrupted, for
// the group is about to break, and the first error is the relay's.
func (w *wire) relay(send, recv flow) error {
	var fail context.CancelCauseFunc
	w.ctx, fail = context.WithCancelCause(w.group.ctx)
	defer func() { w.ctx = w.group.ctx }()
	sent, received := make(chan struct{}, send.n), make(chan struct{}, recv.n)
	run := func(f flow, done, other chan struct{}) {
		if err := f.run(done, other); err != nil {
			fail(err)
			w.interrupt()
		}
	}
	var sender sync.WaitGroup
	sender.Go(func() { run(send, sent, received) })
	run(recv, received, sent)
	sender.Wait()
	err := context.Cause(w.ctx)
	fail(nil)
	return err
}

// run does the flow, telling done of every step and hearing of the other
// direction's. It ends early, without an error, when the other one does.
func (f flow) run(done chan<- struct{}, other <-chan struct{}) error {
	defer close(done)
	seen := 0
	for i := range f.n {
		for ; f.after != nil && seen < f.after(i); seen++ {
			if _, ok := <-other; !ok {
				return nil
			}
		}
		if err := f.do(i); err != nil {
			return err
		}
		done <- struct{}{}
	}
	return nil
}

// pairwise exchanges blocks between all pairs: in step i, rank r sends to
// rank r+i what that takes, and receives from rank r-i. A reduction is done
// piece by piece where its result belongs, of all ranks' blocks in rank order.
//
//	steps: N-1 for each piece
//	bytes sent: what the others take, (N-1)/N·S for AllToAll and
//	ReduceScatter, (N-1)·S for AllGather, S to a root
func (w *wire) pairwise(p *plan) error {
	piece := p.block
	if p.reduces {
		piece = min(piece, segmentBytes)
		w.buf = make([]byte, p.size*piece)
	}
	steps := (p.block + piece - 1) / piece * (p.size - 1)
	bounds := func(i int) (lo, hi, distance int) {
		lo = i / (p.size - 1) * piece
		return lo, min(lo+piece, p.block), i%(p.size-1) + 1
	}
	mine := func(s, lo, hi int) []byte { // where the block of s comes in, or is
		switch {
		case s == p.rank:
			from, to := p.source(s, s, lo, hi)
			return p.src[from:to]
		case p.reduces:
			return w.buf[s*piece:][:hi-lo]
		}
		return p.place(s, lo, hi)
	}
	send := flow{n: steps, do: func(i int) error {
		lo, hi, distance := bounds(i)
		to := (p.rank + distance) % p.size
		if !p.gives(p.rank) || !p.takes(to) {
			return nil
		}
		from, end := p.source(p.rank, to, lo, hi)
		return w.write(to, p.src[from:end])
	}}
	recv := flow{n: steps, do: func(i int) error {
		lo, hi, distance := bounds(i)
		from := (p.rank + p.size - distance) % p.size
		if p.gives(from) && p.takes(p.rank) {
			if err := w.read(from, mine(from, lo, hi)); err != nil {
				return err
			}
		}
		if p.reduces && distance == p.size-1 {
			p.take(lo, hi, func(s int) []byte { return mine(s, lo, hi) })
		}
		return nil
	}}
	if !p.reduces && p.gives(p.rank) && p.takes(p.rank) {
		move(p.place(p.rank, 0, p.block), mine(p.rank, 0, p.block))
	}
	return w.relay(send, recv)
}

// chain broadcasts from Root to the next rank, from there to the one after
// it, and so on around to the one before Root, a segment at a time.
//
//	steps: N-2 + the number of segments
//	bytes sent: S by every rank but the last
func (w *wire) chain(p *plan) error {
	n := (p.block + segmentBytes - 1) / segmentBytes
	next, prev := (p.rank+1)%p.size, (p.rank+p.size-1)%p.size
	part := func(mem []byte, i int) []byte {
		return mem[i*segmentBytes : min((i+1)*segmentBytes, p.block)]
	}
	mem := p.dst
	send := flow{n: n, do: func(i int) error { return w.write(next, part(mem, i)) }, after: func(i int) int { return i + 1 }}
	recv := flow{n: n, do: func(i int) error { return w.read(prev, part(mem, i)) }}
	if p.rank == p.call.Root {
		mem, send.after, recv.n = p.src, nil, 0
		move(p.dst, p.src)
	}
	if next == p.call.Root {
		send.n = 0
	}
	return w.relay(send, recv)
}

// ring is AllReduce around the ring of ranks: N chunks, each of which travels
// once around to be summed up, every rank adding its own, and once more to be
// known. A chunk moves in segments: while one is added the next one arrives.
//
//	steps: 2(N-1) + the number of segments of a chunk
//	bytes sent: 2(N-1)/N·S
//
// Every element is combined in one order, of ranks c, c+1, ... c-1 for chunk
// c, and its result copied: it is bitwise equal everywhere. A 16-bit float is
// rounded after every addition.
func (w *wire) ring(p *plan) error {
	n, elem := p.size, p.dtype.Size()
	next, prev := (p.rank+1)%n, (p.rank+n-1)%n
	segs := max(1, (p.block/n+segmentBytes-1)/segmentBytes)
	w.buf = make([]byte, segmentBytes+2*elem)
	// part is segment i%segs of the chunk that this rank sends in step
	// i/segs, and received in the step before.
	part := func(mem []byte, i int) []byte {
		chunk := (p.rank - i/segs + 2*n) % n
		lo, hi := split(p.block, chunk, n, elem)
		from, to := split(hi-lo, i%segs, segs, elem)
		return mem[lo+from : lo+to]
	}
	half := (n - 1) * segs // steps in which a chunk is summed up; as many follow
	send := flow{n: 2 * half, do: func(i int) error {
		if i < segs {
			return w.write(next, part(p.src, i))
		}
		return w.write(next, part(p.dst, i))
	}, after: func(i int) int { return i - segs + 1 }}
	recv := flow{n: 2 * half, do: func(i int) error {
		got := part(p.dst, i+segs)
		if i >= half {
			return w.read(prev, got)
		}
		theirs := w.buf[:len(got)]
		if err := w.read(prev, theirs); err != nil {
			return err
		}
		op := partial(p.call.Op)
		if i >= half-segs {
			op = p.call.Op // the last of n operands
		}
		p.reduce([][]byte{got}, [][]byte{theirs, part(p.src, i+segs)}, op)
		return nil
	}, after: func(i int) int { return i - half + 1 }} // what is overwritten was sent
	return w.relay(send, recv)
}
