package host

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
)

// connCollectives runs collectives over connections.
type connCollectives struct {
	group       *Group
	rank, size  int
	peers       []*peerConn
	ctx         context.Context // the group's context; during exchange, it also ends at the first error
	readingFrom atomic.Int32    // 1 + the rank from which data is being read; 0 if none
	writingTo   atomic.Int32    // 1 + the rank to which data is being written; 0 if none
	buf         []byte          // scratch memory
}

// segmentBytes is the most that is sent before the receiver starts to process it.
const segmentBytes = 128 << 10

// run executes a collective. First all ranks exchange headers. If the data is inline in the
// headers, nothing else is needed:
//
//	steps: 1
//	bytes sent: (N-1)·(S + the header)
func (cc *connCollectives) run(p *plan) error {
	headers, err := cc.exchangeHeaders(p.header())
	if err != nil {
		return err
	}
	if err := p.checkHeaders(headers); err != nil {
		return err
	}
	switch {
	case p.isInline():
		p.fillDst(0, p.maxBlock, func(s int) []byte {
			from, to := p.srcRange(s, cc.rank, 0, p.maxBlock)
			return headers[s].payload[from:to]
		})
		return nil
	case p.isSharedReduction() && !p.onlyRootTakes:
		return cc.ring(p)
	case p.onlyRootGives && !p.scatters:
		return cc.chain(p)
	default:
		return cc.pairwise(p)
	}
}

// exchangeHeaders sends c to every peer and returns the headers of all ranks.
func (cc *connCollectives) exchangeHeaders(c callHeader) ([]callHeader, error) {
	cc.buf = append(cc.buf[:0], make([]byte, headerSize)...)
	c.encode(cc.buf)
	cc.buf = append(cc.buf, c.payload...)
	for i := 1; i < cc.size; i++ {
		if err := cc.write((cc.rank+i)%cc.size, cc.buf); err != nil {
			return nil, err
		}
	}
	headers := make([]callHeader, cc.size)
	headers[cc.rank] = c
	for i := 1; i < cc.size; i++ {
		peer := (cc.rank + i) % cc.size
		head := make([]byte, headerSize)
		if err := cc.read(peer, head); err != nil {
			return nil, err
		}
		got, payload := decodeHeader(head)
		if payload < 0 || payload > maxInline {
			return nil, fmt.Errorf("header of rank %d with a payload of %d bytes, at most %d", peer, payload, maxInline)
		}
		got.payload = make([]byte, payload)
		if err := cc.read(peer, got.payload); err != nil {
			return nil, err
		}
		headers[peer] = got
	}
	return headers, nil
}

func (cc *connCollectives) write(peer int, p []byte) error {
	cc.writingTo.Store(int32(peer) + 1)
	defer cc.writingTo.Store(0)
	if _, err := cc.peers[peer].conns[collectiveConn].Write(p); err != nil {
		return cc.group.peerLost(cc.ctx, peer, err)
	}
	return nil
}

func (cc *connCollectives) read(peer int, p []byte) error {
	cc.readingFrom.Store(int32(peer) + 1)
	defer cc.readingFrom.Store(0)
	if _, err := io.ReadFull(cc.peers[peer].conns[collectiveConn], p); err != nil {
		return cc.group.peerLost(cc.ctx, peer, err)
	}
	return nil
}

func (cc *connCollectives) waitingFor() (ranks []int) {
	for _, peer := range []int32{cc.readingFrom.Load(), cc.writingTo.Load()} {
		if r := int(peer) - 1; r >= 0 && !slices.Contains(ranks, r) {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// interrupt makes blocked reads and writes return.
func (cc *connCollectives) interrupt() {
	for _, l := range cc.peers {
		if l != nil {
			l.interrupt(collectiveConn)
		}
	}
}

// transfer is one direction of an exchange. It calls do(i) for i from 0 to n-1, each once the other
// direction has finished after(i) steps. If after is nil, it never waits for the other direction.
type transfer struct {
	n     int
	do    func(i int) error
	after func(i int) int
}

// exchange runs two transfers at once, so that two ranks that send to each other do not deadlock.
// When one fails, exchange interrupts the other and returns the first error; the group is about to
// break.
func (cc *connCollectives) exchange(send, recv transfer) error {
	var fail context.CancelCauseFunc
	cc.ctx, fail = context.WithCancelCause(cc.group.ctx)
	defer func() { cc.ctx = cc.group.ctx }()
	sent, received := make(chan struct{}, send.n), make(chan struct{}, recv.n)
	run := func(f transfer, done, other chan struct{}) {
		if err := f.run(done, other); err != nil {
			fail(err)
			cc.interrupt()
		}
	}
	var sender sync.WaitGroup
	sender.Go(func() { run(send, sent, received) })
	run(recv, received, sent)
	sender.Wait()
	err := context.Cause(cc.ctx)
	fail(nil)
	return err
}

// run executes the transfer. It sends to done after every step, and receives from other after every
// step of the other direction. If the other direction ends early, run returns nil.
func (f transfer) run(done chan<- struct{}, other <-chan struct{}) error {
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

// pairwise exchanges blocks between all pairs of ranks: in step i, rank r sends to rank r+i and
// receives from rank r-i. Reductions are computed on the receiving rank, piece by piece, in the
// order of the ranks.
//
//	steps: N-1 for each piece
//	bytes sent: (N-1)/N·S for AllToAll and ReduceScatter, (N-1)·S for AllGather,
//	S to a root
func (cc *connCollectives) pairwise(p *plan) error {
	piece := p.maxBlock
	if p.reduces {
		piece = min(piece, segmentBytes)
		cc.buf = make([]byte, p.size*piece)
	}
	steps := (p.maxBlock + piece - 1) / piece * (p.size - 1)
	bounds := func(i int) (lo, hi, distance int) {
		lo = i / (p.size - 1) * piece
		return lo, min(lo+piece, p.maxBlock), i%(p.size-1) + 1
	}
	mine := func(s, lo, hi int) []byte { // memory that holds, or receives, the block of rank s
		switch {
		case s == p.rank:
			from, to := p.srcRange(s, s, lo, hi)
			return p.src[from:to]
		case p.reduces:
			return cc.buf[s*piece:][:hi-lo]
		}
		return p.dstRange(s, lo, hi)
	}
	send := transfer{n: steps, do: func(i int) error {
		lo, hi, distance := bounds(i)
		to := (p.rank + distance) % p.size
		if !p.hasSrc(p.rank) || !p.hasDst(to) {
			return nil
		}
		from, end := p.srcRange(p.rank, to, lo, hi)
		return cc.write(to, p.src[from:end])
	}}
	recv := transfer{n: steps, do: func(i int) error {
		lo, hi, distance := bounds(i)
		from := (p.rank + p.size - distance) % p.size
		if p.hasSrc(from) && p.hasDst(p.rank) {
			if err := cc.read(from, mine(from, lo, hi)); err != nil {
				return err
			}
		}
		if p.reduces && distance == p.size-1 {
			p.fillDst(lo, hi, func(s int) []byte { return mine(s, lo, hi) })
		}
		return nil
	}}
	if !p.reduces && p.hasSrc(p.rank) && p.hasDst(p.rank) {
		move(p.dstRange(p.rank, 0, p.maxBlock), mine(p.rank, 0, p.maxBlock))
	}
	return cc.exchange(send, recv)
}

// chain broadcasts from Root to the next rank, from there to the one after it, and so on, one
// segment at a time.
//
//	steps: N-2 + the number of segments
//	bytes sent: S by every rank but the last
func (cc *connCollectives) chain(p *plan) error {
	n := (p.maxBlock + segmentBytes - 1) / segmentBytes
	next, prev := (p.rank+1)%p.size, (p.rank+p.size-1)%p.size
	part := func(mem []byte, i int) []byte {
		return mem[i*segmentBytes : min((i+1)*segmentBytes, p.maxBlock)]
	}
	mem := p.dst
	send := transfer{n: n, do: func(i int) error { return cc.write(next, part(mem, i)) }, after: func(i int) int { return i + 1 }}
	recv := transfer{n: n, do: func(i int) error { return cc.read(prev, part(mem, i)) }}
	if p.rank == p.call.Root {
		mem, send.after, recv.n = p.src, nil, 0
		move(p.dst, p.src)
	}
	if next == p.call.Root {
		send.n = 0
	}
	return cc.exchange(send, recv)
}

// ring is AllReduce around the ring of ranks. There are N chunks. Each travels around the ring
// twice: first every rank adds its own part, then every rank receives the result. A chunk moves in
// segments, so that one segment is reduced while the next arrives.
//
//	steps: 2(N-1) + the number of segments of a chunk
//	bytes sent: 2(N-1)/N·S
//
// Chunk c is combined once, in the order of ranks c, c+1, ... c-1, and the result is copied, so all
// ranks have bitwise equal results. A 16-bit float is rounded after every addition.
func (cc *connCollectives) ring(p *plan) error {
	n, elem := p.size, p.dtype.Size()
	next, prev := (p.rank+1)%n, (p.rank+n-1)%n
	segs := max(1, (p.maxBlock/n+segmentBytes-1)/segmentBytes)
	cc.buf = make([]byte, segmentBytes+2*elem)
	// part returns segment i%segs of the chunk that this rank sends in step i/segs. The rank
	// received that chunk in the step before.
	part := func(mem []byte, i int) []byte {
		chunk := (p.rank - i/segs + 2*n) % n
		lo, hi := split(p.maxBlock, chunk, n, elem)
		from, to := split(hi-lo, i%segs, segs, elem)
		return mem[lo+from : lo+to]
	}
	half := (n - 1) * segs // steps of the first time around
	send := transfer{n: 2 * half, do: func(i int) error {
		if i < segs {
			return cc.write(next, part(p.src, i))
		}
		return cc.write(next, part(p.dst, i))
	}, after: func(i int) int { return i - segs + 1 }}
	recv := transfer{n: 2 * half, do: func(i int) error {
		got := part(p.dst, i+segs)
		if i >= half {
			return cc.read(prev, got)
		}
		theirs := cc.buf[:len(got)]
		if err := cc.read(prev, theirs); err != nil {
			return err
		}
		op := partial(p.call.Op)
		if i >= half-segs {
			op = p.call.Op // the last of n operands: Avg divides now
		}
		p.reduce([][]byte{got}, [][]byte{theirs, part(p.src, i+segs)}, op)
		return nil
	}, after: func(i int) int { return i - half + 1 }} // the part to overwrite has been sent
	return cc.exchange(send, recv)
}
