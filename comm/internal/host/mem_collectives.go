package host

import (
	"errors"
	"runtime"
)

// memoryGroup connects ranks that can access each other's memory. The ranks synchronize at
// barriers: a rank arrives at its next barrier, and then waits until all ranks have arrived. After
// the barrier, all ranks see what a rank wrote before it arrived.
//
// Ranks are at most one barrier apart, so double buffering is enough: memory that was written
// before barrier n and read after it may be overwritten after barrier n+1.
type memoryGroup interface {
	// postHeader publishes the header of this rank's next collective, and arrives at a barrier. It
	// copies the payload.
	postHeader(c callHeader)
	arrive()
	// await waits until every rank has arrived at this rank's barrier. It returns an error if the
	// group broke on this rank, or on a rank whose memory this rank may have read, because the
	// program there may have changed that memory.
	await() error
	// header returns the header that a rank posted for the current collective. It is valid until
	// this rank posts the header after the next.
	header(rank int) (callHeader, error)
	// resolve sets r.mem to n bytes of a rank's memory as mapped in this process, or to nil if not
	// all ranks can access that memory. r.owner keeps it mapped.
	resolve(rank int, r *memRef, n int) error
	// scratch returns a rank's scratch memory, which all ranks can access. It holds four pieces.
	scratch(rank int) []byte
}

// memCollectives runs collectives among ranks that can access each other's memory.
type memCollectives struct {
	memoryGroup
	rank, size int
}

// run executes a collective. First all ranks exchange headers, which takes one barrier. If the data
// is inline in the headers, nothing else is needed:
//
//	steps: 1 barrier
//	bytes: each rank reads N·S, where S is the length of Src
func (mc *memCollectives) run(p *plan) error {
	mc.postHeader(p.header())
	if err := mc.await(); err != nil {
		return err
	}
	headers := make([]callHeader, mc.size)
	for s := range headers {
		var err error
		if headers[s], err = mc.header(s); err != nil {
			return err
		}
	}
	if err := p.checkHeaders(headers); err != nil {
		return err
	}
	if p.isInline() {
		p.fillDst(0, p.maxBlock, func(s int) []byte {
			from, to := p.srcRange(s, mc.rank, 0, p.maxBlock)
			return headers[s].payload[from:to]
		})
		return nil
	}
	defer runtime.KeepAlive(headers)
	for s := range headers {
		c := &headers[s]
		if err := errors.Join(mc.resolve(s, &c.src, c.srcBytes), mc.resolve(s, &c.dst, c.srcBytes)); err != nil {
			return err
		}
	}
	switch {
	case p.canReachAll(headers):
		return mc.moveDirect(p, headers)
	case p.isSharedReduction():
		return mc.reduceStaged(p)
	default:
		return mc.moveStaged(p)
	}
}

func (mc *memCollectives) barrier() error {
	mc.arrive()
	return mc.await()
}

// isSharedReduction reports whether the ranks share the work of one reduction, instead of each
// reducing a different block.
func (p *plan) isSharedReduction() bool { return p.reduces && !p.scatters }

// canReachAll reports whether this rank can read the Src of every rank and, in a shared reduction,
// write the Dst of every rank.
func (p *plan) canReachAll(headers []callHeader) bool {
	for s, c := range headers {
		if p.hasSrc(s) && c.srcBytes > 0 && c.src.mem == nil {
			return false
		}
		if p.isSharedReduction() && p.hasDst(s) && c.dst.mem == nil {
			return false
		}
	}
	return true
}

// moveDirect moves the data without intermediate copies. Each rank reads its blocks from the other
// ranks' memory. In a shared reduction, rank r reduces the r-th of N chunks and stores it in the
// Dst of every rank that needs it. So every element is reduced once, in rank order. A rank accesses
// other ranks' memory only in its own chunk, so Dst may be Src.
//
//	steps: 2 barriers, including the barrier of the headers
//	bytes, AllReduce: each rank reads S and writes S
func (mc *memCollectives) moveDirect(p *plan, headers []callHeader) error {
	if p.isSharedReduction() {
		lo, hi := split(p.maxBlock, mc.rank, mc.size, p.dtype.Size())
		var srcs, dsts [][]byte
		for s, c := range headers {
			srcs = append(srcs, c.src.mem[lo:hi])
			if p.hasDst(s) {
				dsts = append(dsts, c.dst.mem[lo:hi])
			}
		}
		p.reduce(dsts, srcs, p.call.Op)
	} else {
		p.fillDst(0, p.maxBlock, func(s int) []byte {
			from, to := p.srcRange(s, mc.rank, 0, p.maxBlock)
			return headers[s].src.mem[from:to]
		})
	}
	return mc.barrier()
}

// pieceBytes is the number of bytes of Src that are staged at a time. Two input and two output
// pieces of every rank should fit in the caches.
const pieceBytes = 256 << 10

// inPiece and outPiece return a rank's input and output piece of step i. They alternate between two
// places in its scratch memory.
func (mc *memCollectives) inPiece(rank, i int) []byte {
	return mc.scratch(rank)[i%2*pieceBytes:][:pieceBytes]
}
func (mc *memCollectives) outPiece(rank, i int) []byte {
	return mc.scratch(rank)[(2+i%2)*pieceBytes:][:pieceBytes]
}

// moveStaged moves data that the peers cannot access through scratch memory, piece by piece. While
// piece i+1 is copied in, piece i is read.
//
//	steps: S/piece + 1 barriers, including the barrier of the headers
//	bytes: each rank copies its Src once more than in moveDirect
func (mc *memCollectives) moveStaged(p *plan) error {
	elem := p.dtype.Size()
	piece := pieceBytes / p.blocksPerSrc() / elem * elem
	n := (p.maxBlock + piece - 1) / piece
	for i := range n + 1 {
		if i < n && p.hasSrc(mc.rank) {
			lo, hi := i*piece, min((i+1)*piece, p.maxBlock)
			for b := range p.blocksPerSrc() {
				from, to := p.srcRange(mc.rank, b, lo, hi)
				copy(mc.inPiece(mc.rank, i)[b*(hi-lo):], p.src[from:to])
			}
		}
		if i > 0 {
			lo, hi := (i-1)*piece, min(i*piece, p.maxBlock)
			p.fillDst(lo, hi, func(s int) []byte {
				from, to := p.srcRange(s, mc.rank, lo, hi)
				at := 0
				if p.scatters {
					at = mc.rank * (hi - lo)
				}
				return mc.inPiece(s, i-1)[at : at+to-from]
			})
		}
		if i < n {
			if err := mc.barrier(); err != nil {
				return err
			}
		}
	}
	return nil
}

// reduceStaged is moveStaged for a shared reduction. It has three stages: while piece i+2 is copied
// in, each rank reduces its part of piece i+1, and the ranks that need the result copy out piece i.
//
//	steps: S/piece + 2 barriers, including the barrier of the headers
//	bytes, AllReduce: each rank reads 3·S and writes 2·S + S/N; all but S read and S written
//	stay in the caches
func (mc *memCollectives) reduceStaged(p *plan) error {
	elem := p.dtype.Size()
	n := (p.maxBlock + pieceBytes - 1) / pieceBytes
	bounds := func(i int) (lo, hi int) { return i * pieceBytes, min((i+1)*pieceBytes, p.maxBlock) }
	srcs := make([][]byte, mc.size)
	for i := range n + 2 {
		if i < n {
			lo, hi := bounds(i)
			copy(mc.inPiece(mc.rank, i), p.src[lo:hi])
		}
		if j := i - 1; 0 <= j && j < n {
			lo, hi := bounds(j)
			from, to := split(hi-lo, mc.rank, mc.size, elem)
			for s := range srcs {
				srcs[s] = mc.inPiece(s, j)[from:to]
			}
			p.reduce([][]byte{mc.outPiece(mc.rank, j)[from:to]}, srcs, p.call.Op)
		}
		if j := i - 2; j >= 0 && p.hasDst(mc.rank) {
			lo, hi := bounds(j)
			for s := range mc.size {
				from, to := split(hi-lo, s, mc.size, elem)
				copy(p.dst[lo+from:lo+to], mc.outPiece(s, j)[from:to])
			}
		}
		if i < n+1 {
			if err := mc.barrier(); err != nil {
				return err
			}
		}
	}
	return nil
}
