package host

import (
	"errors"
	"runtime"
	"slices"

	"github.com/goddp/goddp/internal/backend"
)

// hostLevels runs the two-phase AllReduce among several hosts with the same number of ranks. Its
// network traffic is the same as with one rank per host.
type hostLevels struct {
	shm      sharedMemory
	inMemory *memCollectives
	ranks    []int           // the ranks of this host
	across   connCollectives // connects the ranks that have this rank's position on their hosts
}

// ranksAcross returns the ranks with the same position on their hosts as rank. It returns nil
// unless there are at least two hosts of the same size, whose ranks all share memory. sharing[r]
// lists the ranks that share memory with rank r, in order.
func ranksAcross(sharing [][]int, rank int) (across []int) {
	size, position := len(sharing[rank]), slices.Index(sharing[rank], rank)
	for r, ranks := range sharing {
		if len(ranks) != size || size < 2 {
			return nil
		}
		for _, peer := range ranks {
			if !slices.Equal(sharing[peer], ranks) {
				return nil
			}
		}
		if ranks[position] == r {
			across = append(across, r)
		}
	}
	return across
}

// canReduce reports whether allReduce can run p: all tensors come from Alloc. It is the same on all
// ranks.
func (h *hostLevels) canReduce(p *plan, headers []callHeader) bool {
	return h != nil && p.call.Kind == backend.AllReduce &&
		!slices.ContainsFunc(headers, func(c callHeader) bool { return c.src.segment == 0 || c.dst.segment == 0 })
}

// allReduce reduces a slice of the tensors of this host's ranks, reduces it with the ranks of this
// rank's position on the other hosts, and stores it in the tensors of this host's ranks. All ranks
// have started the call, because the headers have been exchanged. A rank accesses the other ranks'
// memory only in its own slice, so Dst may be Src.
//
//	steps: as many as an AllReduce among H hosts, and 1 barrier
//	bytes sent by the L ranks of a host: 2(H-1)/H·S
//	bytes in memory: each rank reads S and writes S
//
// An element is reduced first in the order of the host's ranks, then in the order of the AllReduce among the hosts.
func (h *hostLevels) allReduce(p *plan, headers []callHeader) error {
	defer runtime.KeepAlive(headers)
	lo, hi := split(p.maxBlock, h.inMemory.rank, len(h.ranks), p.dtype.Size())
	mine := p.dst[lo:hi]
	var srcs, dsts [][]byte
	for s, r := range h.ranks {
		c := &headers[r]
		if err := errors.Join(h.shm.resolve(s, &c.src, c.srcBytes), h.shm.resolve(s, &c.dst, c.srcBytes)); err != nil {
			return err
		}
		srcs = append(srcs, c.src.mem[lo:hi])
		if s != h.inMemory.rank {
			dsts = append(dsts, c.dst.mem[lo:hi])
		}
	}
	p.reduce([][]byte{mine}, srcs, partial(p.call.Op))
	slice := *p
	slice.rank, slice.size, slice.src, slice.dst, slice.maxBlock = h.across.rank, h.across.size, mine, mine, len(mine)
	slice.inlineLimit = -1 // there are no headers
	if err := h.across.move(&slice); err != nil {
		return err
	}
	for _, dst := range dsts {
		copy(dst, mine)
	}
	return h.inMemory.barrier()
}
