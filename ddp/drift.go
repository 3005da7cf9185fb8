package ddp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/awake"
	"github.com/goddp/goddp/internal/kernels"
	"github.com/goddp/goddp/nn"
)

// ReplicaDriftError says that the ranks' parameters are no longer equal. Every
// rank gets it, the same one but for the rank that wraps it.
type ReplicaDriftError struct {
	Pass   uint64   // the backward pass, counted from 1 among those that reduce
	Ranks  []int    // those that differ from a majority of the ranks, ascending; none where there is no majority
	Away   []int    // those that had no inputs any more, within [Model.Join]: they are not compared
	Param  string   // the first that differs, in order of registration
	Hashes []uint64 // its hashes, by rank
	Differ int      // how many parameters differ
	Params int      // of how many
}

func (e *ReplicaDriftError) Error() string {
	who := "no majority tells which of them is wrong"
	switch len(e.Ranks) {
	case 0:
	case 1:
		who = fmt.Sprintf("rank %d is at odds with the majority", e.Ranks[0])
	default:
		who = fmt.Sprintf("ranks %v are at odds with the majority", e.Ranks)
	}
	return fmt.Sprintf("the ranks' replicas differ at backward pass %d, in %d of %d parameters: %s: %q has the hash %s",
		e.Pass, e.Differ, e.Params, who, e.Param, e.holders())
}

// holders says which hash is whose: the first few, in order of rank.
func (e *ReplicaDriftError) holders() string {
	const most = 8
	var hashes []uint64
	ranks := map[uint64][]int{}
	for rank, h := range e.Hashes {
		if slices.Contains(e.Away, rank) {
			continue
		}
		if ranks[h] == nil {
			hashes = append(hashes, h)
		}
		ranks[h] = append(ranks[h], rank)
	}
	var out []string
	for i, h := range hashes {
		if i == most {
			out = append(out, fmt.Sprintf("%d more", len(hashes)-most))
			break
		}
		whose := fmt.Sprintf("ranks %v", ranks[h])
		switch n := len(ranks[h]); {
		case n == 1:
			whose = fmt.Sprintf("rank %d", ranks[h][0])
		case n > most:
			whose = fmt.Sprintf("%d ranks", n)
		}
		out = append(out, fmt.Sprintf("%#016x on %s", h, whose))
	}
	return strings.Join(out, ", ")
}

// UnfrozenError is the panic value of a backward pass through a model one of
// whose parameters was frozen when it was wrapped, and is no more: its gradient
// would be each rank's own. The module has to be wrapped again.
type UnfrozenError struct {
	Rank  int
	Param string
}

func (e *UnfrozenError) Error() string {
	return fmt.Sprintf("ddp: rank %d: %q was frozen when the model was wrapped, so that no bucket has its gradient: wrap the module again", e.Rank, e.Param)
}

// replicas checks that the ranks' parameters are equal. A pass that is checked
// hashes them where it begins, gathers the hashes beside the pass, and looks at
// them where it ends.
type replicas struct {
	pg     *comm.ProcessGroup
	every  uint64
	frozen []*nn.Parameter // when the model was wrapped: equal as long as they stay so
	names  []string
	params []*autograd.Variable // whose memory is asked for at each check: it may move

	mine, all device.Tensor // hashes: this rank's, and those of all, by rank
	passes    uint64        // that reduce, so far
	gather    *comm.Work    // of a pass that is checked
	failed    error         // of the pass: what could not be hashed
}

// newReplicas checks every so many passes; it has memory for that, so that a
// check is one on every rank.
func newReplicas(pg *comm.ProcessGroup, every int, params []*nn.Parameter) (*replicas, error) {
	r := &replicas{pg: pg, every: uint64(every)}
	for _, p := range params {
		if p.Frozen() {
			r.frozen = append(r.frozen, p)
		}
	}
	if every == 0 {
		return r, nil
	}
	seen := map[*autograd.Variable]bool{}
	for _, p := range params {
		if v := p.Var(); !seen[v] {
			seen[v] = true
			r.names = append(r.names, p.Name())
			r.params = append(r.params, v)
		}
	}
	n, ranks := len(r.params), pg.Size()
	buf, err := pg.Alloc((1 + ranks) * n * device.Int64.Size())
	if err != nil {
		return nil, fmt.Errorf("hashes of %d parameters on %d ranks: %w", n, ranks, err)
	}
	hashes := device.NewTensor(buf, device.Int64, 1+ranks, n)
	r.mine, r.all = hashes.Range(0, n), hashes.Range(n, (1+ranks)*n)
	return r, nil
}

// begin is the start of a pass that reduces: before its own reductions, so that
// what differs is found although the pass may fail for it.
func (r *replicas) begin() {
	for _, p := range r.frozen {
		if !p.Frozen() {
			panic(&UnfrozenError{r.pg.Rank(), p.Name()})
		}
	}
	r.passes++
	if r.every == 0 || r.passes%r.every != 0 {
		return
	}
	d := r.pg.Device()
	k, s := kernels.Of(d), d.Compute()
	r.failed = k.Fill(s, r.mine, 0)
	for i, v := range r.params {
		r.failed = errors.Join(r.failed, k.Hash(s, r.mine.Range(i, i+1), v.Tensor()))
	}
	// Whatever failed here, the others take part.
	r.gather = r.pg.With(comm.CallOptions{Name: "parameter hashes"}).AllGather(r.all, r.mine)
}

// checking tells whether the pass is checked.
func (r *replicas) checking() bool { return r.gather != nil }

// end returns a [*ReplicaDriftError] if the pass was checked and the replicas
// differ, or why that is not known; away are the ranks that did not make the pass,
// if any. It waits for the hashes, on the device's compute stream and thus behind
// the pass.
func (r *replicas) end(ctx context.Context, away []bool) error {
	if !r.checking() {
		return nil
	}
	gather, failed := r.gather, r.failed
	r.gather, r.failed = nil, nil
	if err := gather.Wait(ctx); err != nil {
		return errors.Join(failed, err)
	}
	ctx, cancel := awake.WithTimeoutCause(ctx, r.pg.Timeout(), comm.ErrTimeout)
	defer cancel()
	hashes := make([]int64, r.all.Len())
	host := device.HostTensor(hashes, device.Int64)
	d := r.pg.Device()
	if err := d.CopyOut(ctx, d.Compute(), host.Buf.Host(), r.all.Buf); err != nil {
		err = reducer.OfRank("ddp", r.pg.Rank(), fmt.Errorf("reading the hashes of pass %d: %w", r.passes, err))
		r.pg.Abort(err) // the others may apply what this rank does not
		return errors.Join(failed, err)
	}
	if e := compare(hashes, r.names, away); e != nil {
		e.Pass = r.passes
		return errors.Join(failed, e)
	}
	return failed
}

// compare looks at the hashes of all ranks, rank by rank, of the parameters of
// these names; nil when the ranks agree, but for those that are away. Each
// parameter has a majority of its own, so that several ranks can each be found in
// the wrong.
func compare(hashes []int64, names []string, away []bool) *ReplicaDriftError {
	n := len(names)
	ranks := len(hashes) / n
	e := &ReplicaDriftError{Params: n}
	var voters []int
	for rank := range ranks {
		if away != nil && away[rank] {
			e.Away = append(e.Away, rank)
		} else {
			voters = append(voters, rank)
		}
	}
	odd := make([]bool, ranks)
	for i, name := range names {
		votes := map[int64]int{}
		for _, rank := range voters {
			votes[hashes[rank*n+i]]++
		}
		if len(votes) <= 1 {
			continue
		}
		if e.Differ++; e.Differ == 1 {
			e.Param = name
			for rank := range ranks {
				e.Hashes = append(e.Hashes, uint64(hashes[rank*n+i]))
			}
		}
		for most, count := range votes {
			if 2*count <= len(voters) {
				continue
			}
			for _, rank := range voters {
				odd[rank] = odd[rank] || hashes[rank*n+i] != most
			}
		}
	}
	if e.Differ == 0 {
		return nil
	}
	for rank, is := range odd {
		if is {
			e.Ranks = append(e.Ranks, rank)
		}
	}
	return e
}
