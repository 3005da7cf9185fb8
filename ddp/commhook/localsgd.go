package commhook

import (
	"context"
	"fmt"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// PostLocalSGDOptions are the choices of [PostLocalSGD]; the zero value is PyTorch's
// default, with no subgroup.
type PostLocalSGDOptions struct {
	// StartAfter is how many passes are averaged over all ranks, before the first
	// that is not; 0: 100; negative: none. A job that goes on from a checkpoint
	// gives those that are left, on all ranks.
	StartAfter int
	// Subgroup is the part of the group that this rank averages with from then
	// on, such as the ranks of its host ([comm.ProcessGroup.Split]); nil: none, and
	// gradients are not sent.
	Subgroup *comm.ProcessGroup
	// Hook reduces over all, or over the subgroup; nil: AllReduce.
	Hook reducer.Hook
}

// PostLocalSGD averages gradients over all ranks at first, and then over a part of
// them, each of which trains its own replica: Lin, Stich, Patel and Jaggi, "Don't
// Use Large Mini-Batches, Use Local SGD", 2018. The program averages the replicas
// themselves every so many steps, with an [Averager] that starts when the hook does.
//
// The ranks still tell each other, in some bytes a pass, whether all gradients are
// there. Between two averages the replicas differ: ddp.Options.CheckReplicas does
// not go with it, and nor does ddp.JoinOptions.DivideByActive, which counts all ranks.
// At the end of ddp.Model.Join all replicas are what the last one was: average them
// before.
func PostLocalSGD(opts *PostLocalSGDOptions) reducer.Hook {
	var o PostLocalSGDOptions
	if opts != nil {
		o = *opts
	}
	if o.StartAfter == 0 {
		o.StartAfter = 100
	}
	o.Hook = orAllReduce(o.Hook)
	return &postLocal{o: o}
}

type postLocal struct {
	o      PostLocalSGDOptions
	passes int
}

func (h *postLocal) String() string {
	ranks := 1
	if h.o.Subgroup != nil {
		ranks = h.o.Subgroup.Size()
	}
	return fmt.Sprintf("local SGD on %d ranks after %d passes, then %v", ranks, max(h.o.StartAfter, 0), h.o.Hook)
}

// Partial is true: see [reducer.Partial].
func (h *postLocal) Partial() bool { return true }

func (h *postLocal) Reduce(b reducer.GradBucket) reducer.Reduction {
	if b.Index == 0 {
		h.passes++
	}
	if h.passes <= h.o.StartAfter {
		return h.o.Hook.Reduce(b)
	}
	sharers := 1
	if h.o.Subgroup != nil {
		sharers = h.o.Subgroup.Size()
	}
	if b.Op == comm.Sum { // the gradients were divided for all
		if err := scale(b, float64(b.Group.Size())/float64(sharers)); err != nil {
			return failed(b, err)
		}
		b.After = nil
	}
	if sharers == 1 {
		return completed{}
	}
	b.Group = h.o.Subgroup
	return h.o.Hook.Reduce(b)
}

// AveragerOptions are the choices of [NewAverager].
type AveragerOptions struct {
	// Period is how many steps there are from one average to the next; 0: 4.
	Period int
	// StartAfter is how many steps there are before that; as PostLocalSGD's.
	StartAfter int
}

// Averager averages the ranks' parameters every so many steps.
type Averager struct {
	pg    *comm.ProcessGroup
	o     AveragerOptions
	steps int
}

// NewAverager is an Averager over a group.
func NewAverager(pg *comm.ProcessGroup, opts *AveragerOptions) *Averager {
	var o AveragerOptions
	if opts != nil {
		o = *opts
	}
	if o.Period <= 0 {
		o.Period = 4
	}
	if o.StartAfter == 0 {
		o.StartAfter = 100
	}
	return &Averager{pg: pg, o: o}
}

// Step counts a step of the optimizer, which all ranks have made, and averages the
// parameters, in place, where it is one for that. What an optimizer keeps is to be
// averaged with them where it makes the parameters: its masters.
func (a *Averager) Step(ctx context.Context, params []*autograd.Variable) error {
	a.steps++
	if done := a.steps - max(a.o.StartAfter, 0); done <= 0 || done%a.o.Period != 0 {
		return nil
	}
	var written []device.Tensor
	for _, p := range params {
		p.BumpVersion()
		written = append(written, p.Tensor())
	}
	return a.pg.With(comm.CallOptions{Name: "average of replicas"}).Coalesce(func(g *comm.ProcessGroup) {
		for _, t := range kernels.Distinct(written) {
			g.AllReduce(t, comm.Avg)
		}
	}).Wait(ctx)
}
