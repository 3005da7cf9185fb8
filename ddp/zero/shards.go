package zero

import (
	"context"
	"errors"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/capture"
	"github.com/goddp/goddp/internal/gradsink"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// shards divides the buckets of a model among the ranks. As a reducer.Hook it reduce-scatters the
// gradients. It also observes the backward passes of the model.
type shards struct {
	pg     *comm.ProcessGroup
	module nn.Model
	layout
	stage, slots int           // Options.Stage and Slots
	largest      int           // the size in bytes from which a bucket has its own slot
	copies       bool          // Options.CopyShards
	skipSync     bool          // Options.SkipInitSync
	ignored      []string      // Options.Ignore
	flow         flow          // the gathers of stage 3
	isObserved   bool          // a backward pass makes the reductions of stages 2 and 3; false: a shadow pass
	isRegrouping bool          // within Optimizer.Regroup
	hasReduced   bool          // a pass was reduced, and none has started since
	prepared     *optim.Scaled // the step for which this rank has all that it needs; nil: none
	capturing    *capture.Step // the step that is being captured and has made a pass; else nil
	join         joining
}

// layout is the memory of the parameters, and the parts that a rank has of it. It depends on the rank and the size of
// the group.
type layout struct {
	rank, size int
	buckets    []*bucket
	parts      []*part // of this rank's shards
	copied     []*part // of the shards of the rank before, of which this rank keeps copies; nil: none
	frozen     []*part // in stage 3, of this rank's shards of frozen parameters
}

// before returns the rank whose shards this rank copies.
func (l *layout) before() int { return (l.rank + l.size - 1) % l.size }

// after returns the rank that copies this rank's shards.
func (l *layout) after() int { return (l.rank + 1) % l.size }

// bucket is a bucket of parameters, and their [gradsink.Source]. Its layout is that of the bucket with their gradients,
// if they have any. Buckets of frozen parameters come after the others.
type bucket struct {
	shards *shards
	index  int
	params []*nn.Parameter
	at     []int // by parameter: the index of its first element
	name   string
	flat   device.Tensor
	shard  device.Tensor // this rank's shard of flat
	copy   device.Tensor // a copy of the shard of the rank before; the zero Tensor if there is none
	frozen bool          // its parameters are frozen
	grads  device.Tensor // the bucket of gradients; in stages 2 and 3 only its length and type count
	sum    device.Tensor // in stages 2 and 3, the averages of this rank's shard; else the zero Tensor
	adds   bool          // the pass adds to sum
	slot   *slot         // in stage 3, the memory of flat; else nil
	gather *comm.Work    // the gather of the last step; nil: none, or the compute stream waits for it
	done   device.Event  // the event after the updates of the current step; nil: the end of all work enqueued so far
}

// part is the part of a parameter in this rank's shard: the elements lo to hi. It may be empty.
type part struct {
	*nn.Parameter               // the whole parameter
	local         *nn.Parameter // the part, with the name and the shape of the whole parameter
	lo, hi        int
	at            int // the index of the parameter's first element in the bucket
	start         int // the index of element lo in the shard
	bucket        *bucket
}

// shard returns a rank's shard of a bucket.
func (l *layout) shard(flat device.Tensor, rank int) device.Tensor {
	n := flat.Len() / l.size
	return flat.Range(rank*n, (rank+1)*n)
}

// Reduce reduce-scatters the bucket, so that this rank gets the averages of its shard.
func (s *shards) Reduce(b reducer.GradBucket) reducer.Reduction {
	s.hasReduced, s.join.owesStep = true, s.join.isActive
	s.shadow(b)
	to, dst := s.buckets[b.Index], s.shard(b.Flat, s.rank)
	if s.stage > 1 && !to.adds {
		dst = to.sum
	}
	w := s.pg.With(&comm.CallOptions{Name: b.Name, After: b.After}).ReduceScatter(dst, b.Flat, b.Op)
	if to.adds {
		return &addition{w, s.pg.Device(), to.sum, dst}
	}
	return w
}

// addition is a reduction whose result is added to the sum of earlier passes.
type addition struct {
	*comm.Work
	dev      device.Device
	sum, add device.Tensor
}

func (a *addition) Wait(ctx context.Context) error {
	if err := a.Work.Wait(ctx); err != nil {
		return err
	}
	return a.dev.Kernels().Axpby(a.dev.Compute(), a.sum, device.Accum{Alpha: 1, Beta: 1}, a.add)
}

// Slots returns the number of buckets of gradients that are whole at the same time, or 0 for all.
func (s *shards) Slots() int {
	if s.stage > 1 {
		return s.slots
	}
	return 0
}

func (s *shards) inSlots() bool { return s.stage == 3 }

// parametersOf returns parts as parameters for a local optimizer.
func parametersOf(parts []*part) []*nn.Parameter {
	var params []*nn.Parameter
	for _, p := range parts {
		params = append(params, p.local)
	}
	return params
}

// BeginBackward panics with an [*AccumulationError] if the pass would add to gradients that are
// reduced to shards.
func (s *shards) BeginBackward(func(*autograd.Variable) bool) {
	if r := capture.Of(s.pg.Device()); r != nil {
		s.capture(r)
	}
	s.prepared = nil
	s.flow.backward = len(s.flow.recorded)
	if s.stage > 1 {
		s.beginSums()
		return
	}
	if !s.hasReduced {
		return
	}
	for _, p := range s.parts {
		if p.Grad() != nil {
			panic(&AccumulationError{s.pg.Rank(), p.Name()})
		}
	}
	s.hasReduced = false
}

// beginSums prepares a pass that writes new gradients and adds their averages to those of earlier passes, if there are
// any.
func (s *shards) beginSums() {
	s.isObserved = true
	has := make([]bool, len(s.parts))
	for _, b := range s.buckets {
		b.adds = false
	}
	for i, p := range s.parts {
		has[i] = p.Grad() != nil
		b := p.bucket
		b.adds = b.adds || has[i]
		gradsink.Of(p.Var()).State.Zero()
	}
	for i, p := range s.parts {
		if b := p.bucket; b.adds && !has[i] {
			// An error of the device is returned by the pass as well.
			s.pg.Device().Kernels().Fill(s.pg.Device().Compute(), b.sum.Range(p.start, p.start+p.hi-p.lo), 0)
		}
	}
}

// Stateless returns true: each pass reduces its gradients in the same way.
func (s *shards) Stateless() bool { return true }

// CanRegroup returns an error if the model is regrouped by itself: only the optimizer's Regroup may do it.
func (s *shards) CanRegroup() error {
	if s.isRegrouping {
		return nil
	}
	return errors.New("the optimizer's state is divided among the ranks (ddp/zero): want Regroup of its optimizer")
}

// Divided returns true: in the gradients of whole parameters, only this rank's shard holds averages.
func (s *shards) Divided() bool { return true }

// capture is called when a step that is being captured uses a parameter or begins a pass. The step's first pass depends
// on the value of hasReduced, and each replay must set hasReduced.
func (s *shards) capture(r *capture.Step) {
	if s.capturing == r {
		return
	}
	capture.Undo(r, &s.capturing)
	s.capturing = r
	before := s.hasReduced
	r.Require(func() bool { return s.hasReduced == before })
	capture.Replay(r, &s.hasReduced)
	if s.inSlots() {
		s.captureFlow(r)
	}
	r.Before(s.awaitAll)
}

// EndBackward ends the gathers of the pass.
func (s *shards) EndBackward(err error) error {
	if s.inSlots() {
		s.endPass(err)
	}
	return nil
}

// ReducesAlways reports whether each pass reduces, also within NoSync, because no rank has memory for all gradients.
func (s *shards) ReducesAlways() bool { return s.stage > 1 }

// gradient is the gradient of a part: a view of the parameter's gradient, which package ddp owns.
type gradient part

func (g *gradient) Grad() device.Tensor {
	whole := g.Parameter.Grad()
	if whole == nil {
		return device.Tensor{}
	}
	if sum := g.bucket.sum; !sum.IsZero() {
		return sum.Range(g.start, g.start+g.hi-g.lo)
	}
	return whole.Tensor().Flat().Range(g.lo, g.hi)
}

func (g *gradient) Settle()             {} // Grad has settled the parameter's gradient
func (g *gradient) Pending() bool       { return gradsink.Of(g.Var()).Pending() }
func (g *gradient) Err() error          { return g.Var().GradErr() }
func (g *gradient) Skip() device.Tensor { return gradsink.Of(g.Var()).Skip() }

// No backward pass computes the gradient of a part, so no pass calls the following methods.

func (g *gradient) Scale() float64     { return 1 }
func (g *gradient) Ready(device.Event) {}
