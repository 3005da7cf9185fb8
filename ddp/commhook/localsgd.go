package commhook

import (
	"cmp"
	"context"
	"fmt"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// PostLocalSGDOptions are the options of [PostLocalSGD]. The zero value is PyTorch's default,
// without a subgroup.
type PostLocalSGDOptions struct {
	// StartAfter is the number of passes at the beginning that are averaged over all ranks. 0 means 100, a
	// negative number none. A job that resumes from a checkpoint sets StartAfter, on all ranks, to the number
	// of these passes that are still to be made.
	StartAfter int
	// Subgroup is the group with which this rank averages gradients afterwards, such as the ranks
	// of its host ([comm.ProcessGroup.Split]). With nil, gradients are not sent.
	Subgroup *comm.ProcessGroup
	// Hook reduces the gradients over all ranks and over the subgroup; nil means AllReduce.
	Hook reducer.Hook
}

// PostLocalSGD averages gradients over all ranks at first. After StartAfter passes it averages them
// only within a subgroup, so that each subgroup trains its own replica: Lin, Stich, Patel and
// Jaggi, "Don't Use Large Mini-Batches, Use Local SGD", 2018. The program then averages the
// parameters of all replicas every few steps, with an [Averager] that has the same StartAfter.
//
// All ranks still exchange a few bytes in each pass: the flags for missing gradients. Between two
// averages the replicas differ, so ddp.Options.CheckReplicas cannot be used with this hook.
// ddp.JoinOptions.DivideByActive cannot be used either, because it counts all ranks. At its end ddp.Model.Join
// copies one replica to all ranks, so average the replicas before.
func PostLocalSGD(opts *PostLocalSGDOptions) reducer.Hook {
	o := *cmp.Or(opts, &PostLocalSGDOptions{})
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

// Partial returns true: see [reducer.Partial].
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
	if b.Op == comm.Sum { // the gradients were divided by the number of all ranks
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

// AveragerOptions are the options of [NewAverager].
type AveragerOptions struct {
	// Period is the number of steps from one average to the next; 0 means 4.
	Period int
	// StartAfter is the number of steps before the first period, as in PostLocalSGDOptions.
	StartAfter int
}

// Averager averages the parameters of all ranks every few steps.
type Averager struct {
	pg    *comm.ProcessGroup
	o     AveragerOptions
	steps int
}

// NewAverager returns an Averager over the ranks of a group.
func NewAverager(pg *comm.ProcessGroup, opts *AveragerOptions) *Averager {
	o := *cmp.Or(opts, &AveragerOptions{})
	if o.Period <= 0 {
		o.Period = 4
	}
	if o.StartAfter == 0 {
		o.StartAfter = 100
	}
	return &Averager{pg: pg, o: o}
}

// Step counts a step of the optimizer, which all ranks have made. At the end of each period it
// averages the parameters, in place. If the optimizer keeps master copies of 16-bit parameters,
// pass these too: the optimizer computes the parameters from them.
func (a *Averager) Step(ctx context.Context, params []*autograd.Variable) error {
	if a.pg == nil {
		return fmt.Errorf("commhook: Averager: %w", comm.ErrNoGroup)
	}
	a.steps++
	if done := a.steps - max(a.o.StartAfter, 0); done <= 0 || done%a.o.Period != 0 {
		return nil
	}
	var written []device.Tensor
	for _, p := range params {
		p.BumpVersion()
		written = append(written, p.Tensor())
	}
	return a.pg.With(&comm.CallOptions{Name: "average of replicas"}).Coalesce(func(g *comm.ProcessGroup) {
		for _, t := range kernels.Distinct(written) {
			g.AllReduce(t, comm.Avg)
		}
	}).Wait(ctx)
}
