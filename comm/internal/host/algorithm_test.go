package host

import (
	"fmt"
	"testing"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
)

// planFor returns the plan of one of n ranks for a collective whose Src, or block of Src, has this
// many bytes.
func planFor(k backend.Kind, bytes, rank, n int) *plan {
	x := func(blocks int) device.Tensor {
		return device.NewTensor(device.HostBuffer(make([]byte, blocks*bytes), nil), device.Float32, blocks*bytes/4)
	}
	c := &backend.Call{Kind: k, Root: 1, Src: x(1), Dst: x(1)}
	p := patterns[k]
	if p.scatters {
		c.Src = x(n)
	}
	if p.gathers {
		c.Dst = x(n)
	}
	plan := newPlan(c, rank, make([]int, n), nil)
	plan.inlineLimit = inlineLimit(n)
	return plan
}

// All ranks choose the same algorithm. The table holds both sides of every size at which it
// changes.
func TestAlgorithmDependsOnSizeAndRanks(t *testing.T) {
	const kib = 1 << 10
	for _, x := range []struct {
		kind        backend.Kind
		ranks       int
		bytes       int // of Src; for ReduceScatter, of a block
		upTo, above algorithm
	}{
		{backend.AllReduce, 2, 16 * kib, inHeaders, halving},
		{backend.AllReduce, 3, 16 * kib, inHeaders, halving},
		{backend.AllReduce, 9, 4 * kib, inHeaders, halving},
		{backend.AllReduce, 2, 128 * kib, halving, ring},
		{backend.AllReduce, 7, 448 * kib, halving, ring},
		{backend.Broadcast, 2, 16 * kib, inHeaders, tree},
		{backend.Broadcast, 3, 128 * kib, tree, chain},
		{backend.Broadcast, 8, 384 * kib, tree, chain},
		{backend.Reduce, 3, 128 * kib, tree, chain},
		{backend.Reduce, 16, 14 * 128 * kib / 3 / 4 * 4, tree, chain},
		{backend.AllGather, 5, 8 * kib, inHeaders, halving},
		{backend.ReduceScatter, 4, 64 * kib, halving, pairwise},
		{backend.AllToAll, 3, 16 * kib, pairwise, pairwise},
		{backend.Gather, 3, 16 * kib, inHeaders, pairwise},
	} {
		t.Run(fmt.Sprint(x.kind, x.ranks, x.bytes), func(t *testing.T) {
			for rank := range x.ranks {
				if got := planFor(x.kind, x.bytes, rank, x.ranks).algorithm(); got != x.upTo {
					t.Errorf("rank %d, %d bytes: algorithm %d, want %d", rank, x.bytes, got, x.upTo)
				}
				if got := planFor(x.kind, x.bytes+4, rank, x.ranks).algorithm(); got != x.above {
					t.Errorf("rank %d, %d bytes: algorithm %d, want %d", rank, x.bytes+4, got, x.above)
				}
			}
		})
	}
}

// In ceil(log2 n) rounds every rank gets n-1 blocks, each from a rank that has it.
func TestRoundsGatherAllBlocks(t *testing.T) {
	for n := 1; n <= 100; n++ {
		have, log := 1, 0
		for 1<<log < n {
			log++
		}
		rs := rounds(n)
		for _, r := range rs {
			if r.lo != have || r.blocks() > have {
				t.Errorf("%d ranks: in round %v the ranks have %d blocks", n, r, have)
			}
			have = r.hi
		}
		if have != n || len(rs) != log {
			t.Errorf("%d ranks: %d blocks after %d rounds, want %d after %d", n, have, len(rs), n, log)
		}
	}
}

// Every rank but the root is the child of its parent, and of no other rank.
func TestTreesReachAllRanks(t *testing.T) {
	for n := 2; n <= 33; n++ {
		for name, of := range map[string]func(*plan) relatives{"binomial": binomial, "linear": linear} {
			parents := make([]int, n)
			for r := range parents {
				parents[r] = -1
			}
			root := n / 3
			at := func(rank int) relatives {
				return of(&plan{rank: rank, size: n, call: &backend.Call{Root: root}})
			}
			for rank := range n {
				for _, child := range at(rank).children {
					if parents[child] >= 0 {
						t.Errorf("%s, %d ranks: rank %d is a child of ranks %d and %d", name, n, child, parents[child], rank)
					}
					parents[child] = rank
				}
			}
			for rank := range n {
				if got := at(rank).parent; got != parents[rank] || (got < 0) != (rank == root) {
					t.Errorf("%s, %d ranks, root %d: the parent of rank %d is %d, and it is a child of %d", name, n, root, rank, got, parents[rank])
				}
			}
		}
	}
}
