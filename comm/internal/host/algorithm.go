package host

import (
	"math/bits"
	"slices"

	"github.com/goddp/goddp/internal/backend"
)

// algorithm is the algorithm of a collective over connections.
type algorithm uint8

const (
	inHeaders algorithm = iota // the headers hold the data
	halving                    // every rank reduces a part, in rounds of doubling distance, and distributes it
	ring                       // every rank reduces a part, which travels from each rank to the next, and distributes it
	tree                       // along a binomial tree
	chain                      // from rank to rank, segment by segment
	pairwise                   // between all pairs of ranks
)

// Sizes at which the algorithm changes, in bytes.
const (
	inlineTotal  = 32 << 10 // maximum inline data that a rank sends
	halvingChunk = 64 << 10 // maximum block (Src/N) for which AllReduce and ReduceScatter use halving
)

// inlineLimit returns the maximum size of Src, in bytes, that is sent in the headers among n ranks.
func inlineLimit(n int) int { return min(maxInline, inlineTotal/max(n-1, 1)) }

// algorithm returns the algorithm of a collective. It is the same on all ranks, because it depends
// only on the number of ranks, the fingerprint and Counts, which the headers compare.
func (p *plan) algorithm() algorithm {
	switch {
	case p.isInline():
		return inHeaders
	case p.call.Kind == backend.AllGather:
		return halving
	case p.call.Kind == backend.ReduceScatter && p.maxBlock <= halvingChunk:
		return halving
	case p.call.Kind == backend.AllReduce:
		if p.maxBlock <= p.size*halvingChunk {
			return halving
		}
		return ring
	case p.call.Kind == backend.Broadcast || p.call.Kind == backend.Reduce:
		// Until the last rank has the data, a tree moves S·log N bytes, a chain S bytes and N-2 segments.
		if p.maxBlock*(bits.Len(uint(p.size-1))-1) <= (p.size-2)*segmentBytes {
			return tree
		}
		return chain
	}
	return pairwise
}

// round is one step of an exchange among N ranks. Before the round, rank r has the blocks of ranks r,
// r+1, ... r+lo-1. In the round, rank r receives the blocks of ranks r+lo, ... r+hi-1, which are the
// first blocks of rank r+lo, from that rank. The rounds of a reduction run backwards.
type round struct{ lo, hi int }

// blocks returns the number of blocks that a rank sends, and receives, in the round.
func (r round) blocks() int { return r.hi - r.lo }

// rounds returns the rounds among n ranks. The number of blocks at most doubles in a round, so that
// every rank sends n-1 blocks in log2 n rounds, rounded up, for any n. Source: J. L. Träff, Optimal,
// Non-pipelined Reduce-scatter and Allreduce Algorithms, arXiv 2410.14234.
func rounds(n int) []round {
	var rs []round
	for hi := n; hi > 1; {
		lo := (hi + 1) / 2
		rs = append(rs, round{lo, hi})
		hi = lo
	}
	slices.Reverse(rs)
	return rs
}

// relatives are the neighbours of a rank in a tree whose root is the root of the call.
type relatives struct {
	parent   int // -1 for the root
	children []int
}

// binomial returns the relatives of p's rank in a binomial tree. The subtree of the first child is
// the largest.
func binomial(p *plan) (r relatives) {
	at := (p.rank - p.call.Root + p.size) % p.size // number in the tree
	low := at & -at                                // the lowest bit of at: the parent's number is at without this bit
	if at == 0 {
		low = 1 << bits.Len(uint(p.size-1))
	}
	for d := low / 2; d > 0; d /= 2 {
		if at+d < p.size {
			r.children = append(r.children, (p.rank+d)%p.size)
		}
	}
	r.parent = (p.rank - low + p.size) % p.size
	if at == 0 {
		r.parent = -1
	}
	return r
}

// linear returns the relatives of p's rank in a chain, where the only child of a rank is the next rank.
func linear(p *plan) relatives {
	r := relatives{parent: (p.rank + p.size - 1) % p.size, children: []int{(p.rank + 1) % p.size}}
	if p.rank == p.call.Root {
		r.parent = -1
	}
	if r.children[0] == p.call.Root {
		r.children = nil
	}
	return r
}
