package ddp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/awake"
	"github.com/goddp/goddp/internal/kernels"
	"github.com/goddp/goddp/internal/rootcause"
	"github.com/goddp/goddp/nn"
)

// ReplicaDriftError says that the parameters differ between ranks. Every rank gets an equal one.
type ReplicaDriftError struct {
	Pass   uint64   // the number of the backward pass, counted from 1 among those that reduce
	Ranks  []int    // the ranks that differ from the majority, ascending; nil if there is no majority
	Away   []int    // within [Model.Join], the ranks that had no inputs; their parameters are not compared
	Param  string   // the first parameter that differs, in order of registration
	Hashes []uint64 // the hashes of Param, by rank
	Differ int      // the number of parameters that differ
	Params int      // the number of parameters compared
}

func (e *ReplicaDriftError) Error() string {
	who := "there is no majority that shows which rank is wrong"
	switch n := len(e.Ranks); {
	case n == 1:
		who = rootcause.Ranks(e.Ranks) + " differs from the majority"
	case n > 1:
		who = rootcause.Ranks(e.Ranks) + " differ from the majority"
	}
	return fmt.Sprintf("the ranks' replicas differ at backward pass %d, in %d of %d parameters: %s: %q has the hash %s",
		e.Pass, e.Differ, e.Params, who, e.Param, e.holders())
}

// holders lists the first few hashes, in order of rank, each with the ranks that have it.
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
		out = append(out, fmt.Sprintf("%#016x on %s", h, rootcause.Ranks(ranks[h])))
	}
	return strings.Join(out, "; ")
}

// UnfrozenError is the panic value of a backward pass if a parameter was frozen when New wrapped the model,
// but is not frozen any more. The parameter's gradient has no place in the buckets, so it would differ between
// ranks. To train the parameter, wrap the module again.
type UnfrozenError struct {
	Rank  int
	Param string
}

func (e *UnfrozenError) Error() string {
	return fmt.Sprintf("ddp: rank %d: %q was frozen when the model was wrapped and is not any more, so no bucket holds its gradient: wrap the module again", e.Rank, e.Param)
}

// replicas checks that the parameters are equal on all ranks. When a checked pass begins, it hashes the
// parameters and starts to gather the hashes. When the pass ends, it compares them.
type replicas struct {
	pg     *comm.ProcessGroup
	every  int             // the passes whose number is a multiple of every are checked; 0: none
	frozen []*nn.Parameter // the parameters that were frozen when the model was wrapped
	names  []string
	params []*autograd.Variable // a check asks for their memory each time, because the memory may move

	mine, all device.Tensor // hashes: of this rank, and of all ranks by rank
	gather    *comm.Work    // the gathering of the hashes in a checked pass
	failed    error         // the errors of hashing in this pass
}

// newReplicas allocates the memory for checks now, so that a check later cannot fail on one rank only.
func newReplicas(pg *comm.ProcessGroup, every int, params []*nn.Parameter) (*replicas, error) {
	r := &replicas{pg: pg, every: every}
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
		return nil, fmt.Errorf("allocating memory for the hashes of %d parameters on %d ranks: %w", n, ranks, err)
	}
	hashes := device.NewTensor(buf, device.Int64, 1+ranks, n)
	r.mine, r.all = hashes.Range(0, n), hashes.Range(n, (1+ranks)*n)
	return r, nil
}

// begin is called with the number of a pass when the pass begins, if it reduces. It precedes the reductions, so that
// differences are found even if they make the pass fail.
func (r *replicas) begin(pass int) {
	for _, p := range r.frozen {
		if !p.Frozen() {
			panic(&UnfrozenError{r.pg.Rank(), p.Name()})
		}
	}
	if r.every == 0 || pass%r.every != 0 {
		return
	}
	d := r.pg.Device()
	k, s := kernels.Of(d), d.Compute()
	r.failed = k.Fill(s, r.mine, 0)
	for i, v := range r.params {
		r.failed = errors.Join(r.failed, k.Hash(s, r.mine.Range(i, i+1), v.Tensor()))
	}
	// Even after an error this rank takes part, because the other ranks wait for it.
	r.gather = r.pg.With(&comm.CallOptions{Name: "parameter hashes"}).AllGather(r.all, r.mine)
}

// checking reports whether the current pass is checked.
func (r *replicas) checking() bool { return r.gather != nil }

// end returns a [*ReplicaDriftError] if the pass was checked and the replicas differ, or another error if the
// comparison failed. away says, by rank, whether the rank did not make the pass itself; nil means that all did.
// end waits until the compute stream has computed the hashes, and thus for the pass.
func (r *replicas) end(ctx context.Context, pass int, away []bool) error {
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
		err = fmt.Errorf("ddp: rank %d: reading the parameters' hashes of backward pass %d: %w", r.pg.Rank(), pass, err)
		r.pg.Abort(err) // the other ranks may apply the step that this one does not
		return errors.Join(failed, err)
	}
	if e := compare(hashes, r.names, away); e != nil {
		e.Pass = uint64(pass)
		return errors.Join(failed, e)
	}
	return failed
}

// compare compares the hashes of all ranks, which are ordered by rank. names are the names of the
// parameters. It returns nil if all ranks that are not away agree. The majority is determined for each
// parameter separately.
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
	differs := make([]bool, ranks)
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
				differs[rank] = differs[rank] || hashes[rank*n+i] != most
			}
		}
	}
	if e.Differ == 0 {
		return nil
	}
	for rank, is := range differs {
		if is {
			e.Ranks = append(e.Ranks, rank)
		}
	}
	return e
}
