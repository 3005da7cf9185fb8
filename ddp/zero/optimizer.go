package zero

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
	"github.com/goddp/goddp/profile"
)

// Optimizer makes the steps of a [Model]: each rank those of its shards, by an
// optimizer of type O. It is driven by one goroutine; others may ask for what is
// Committed.
type Optimizer[O Local] struct {
	shards *shards
	local  O
	last   map[*nn.Parameter]*bucket // by part: the bucket whose updates end with it
	rest   []*nn.Parameter           // parts that local does not have
	whole  []*autograd.Variable      // the parameters that local has parts of

	mu      sync.Mutex
	gathers []*comm.Work // of the last step
	updated int          // the steps whose updates this rank has enqueued, all of them
}

func newOptimizer[O Local](s *shards, local O) (*Optimizer[O], error) {
	o := &Optimizer[O]{shards: s, local: local, last: map[*nn.Parameter]*bucket{}}
	parts := map[*nn.Parameter]*part{}
	for _, p := range s.parts {
		parts[p.local] = p
	}
	ends := make([]*nn.Parameter, len(s.buckets))
	for _, p := range local.Parameters() {
		part := parts[p]
		if part == nil {
			return nil, fmt.Errorf("the optimizer of the shards has parameter %q, which newLocal was not given", p.Name())
		}
		ends[part.bucket] = p
		o.whole = append(o.whole, part.Var())
		delete(parts, p)
	}
	o.rest = slices.Collect(maps.Keys(parts))
	for i, p := range ends {
		if p != nil {
			o.last[p] = &s.buckets[i]
		}
	}
	local.SetStepHook((*stepHook[O])(o))
	return o, nil
}

// Local is the optimizer of this rank's shards, for changing its options, which
// are the same on all ranks.
func (o *Optimizer[O]) Local() O { return o.local }

// Group is the ranks that have to agree on a step: those that the state is divided
// among. Within [Model.Join] it waits for the outcome of the last pass, and is nil
// where they have agreed, by that, to skip the step: a rank without inputs takes part
// in those alone that count.
func (o *Optimizer[O]) Group() *comm.ProcessGroup {
	if o.shards.join.on && o.shards.skipped() {
		return nil
	}
	return o.shards.pg
}

// Parameters are this rank's parts of the parameters that are optimized, by the names
// and in the shapes of the whole ([nn.NewPart]), some of them empty. Their gradients are
// averages.
func (o *Optimizer[O]) Parameters() []*nn.Parameter { return o.local.Parameters() }

// ZeroGrad forgets the gradients of all parameters, also of those that are not
// optimized: they are in shards as well.
func (o *Optimizer[O]) ZeroGrad() {
	o.local.ZeroGrad()
	for _, p := range o.rest {
		p.Var().ZeroGrad()
	}
}

// SetLR sets the learning rate of the local optimizer on this rank. It panics if that is no
// [optim.LRSetter].
func (o *Optimizer[O]) SetLR(lr float64) { any(o.local).(optim.LRSetter).SetLR(lr) }

// ClipGradNorm is [optim.ClipGradNorm] for the gradients of the whole model, of which
// each rank has parts: all ranks call it, behind the same backward passes, within
// [Model.Join] in JoinOptions.Step. An error breaks the group: the others wait for this
// rank's part of the norm.
func (o *Optimizer[O]) ClipGradNorm(max float64) (norm *autograd.Variable, err error) {
	return o.ClipGradPNorm(2, max)
}

// ClipGradPNorm is [optim.ClipGradPNorm] for the gradients of the whole model, as
// ClipGradNorm is optim.ClipGradNorm.
func (o *Optimizer[O]) ClipGradPNorm(p, max float64) (norm *autograd.Variable, err error) {
	if join := &o.shards.join; join.on && !join.customStep {
		return nil, fmt.Errorf("zero: rank %d: gradients clipped within Join, where ranks without inputs do not: JoinOptions.Step is what does", o.shards.pg.Rank())
	}
	group := o.Group()
	reduction := comm.Sum
	if math.IsInf(p, 1) {
		reduction = comm.Max
	}
	norm, err = optim.ClipGradPNormOver(o.Parameters(), p, max, func(sum device.Tensor) error {
		if group == nil { // the step will be skipped
			return nil
		}
		return group.With(comm.CallOptions{Name: "norm of gradients"}).AllReduce(sum, reduction).Wait(context.Background()) // it has a deadline of its own
	})
	if err != nil && group != nil {
		group.Abort(err)
	}
	return norm, err
}

// Step changes the parameters by their gradients, on all ranks: see the package
// documentation, and [optim.SGD.Step] for errors. All ranks call it behind the
// same backward passes. A gather that fails is an [*optim.InconsistentError], from this
// Step or, where that does not wait for it, from the next. A torn step breaks the
// group: the others lack this rank's shards.
func (o *Optimizer[O]) Step() error { return o.StepScaled(optim.Scaled{}) }

// StepScaled is Step with gradients of a scaled loss. The ranks have agreed on
// the overflow: see package amp.
func (o *Optimizer[O]) StepScaled(s optim.Scaled) error {
	join := &o.shards.join
	join.owes = false
	if join.on && !join.customStep && s.Err != nil {
		return fmt.Errorf("zero: rank %d: a scaled step within Join, where ranks without inputs make plain ones: JoinOptions.Step is what makes it", o.shards.pg.Rank())
	}
	if err := o.failed(); err != nil {
		n := len(o.shards.parts)
		return &optim.InconsistentError{Step: o.updated, Updated: n, Params: n, Err: err}
	}
	for i := range o.shards.buckets {
		o.shards.buckets[i].done = nil // of a step that was skipped
	}
	err := o.local.StepScaled(s)
	if errors.As(err, new(*optim.InconsistentError)) {
		o.shards.pg.Abort(err) // the others may be waiting
	}
	return err
}

// failed is why a gather of the last step failed, as far as it is known.
func (o *Optimizer[O]) failed() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, w := range o.gathers {
		if s, err := w.State(); s == comm.Failed {
			return err
		}
	}
	return nil
}

// Committed is how many steps were committed, and whether the parameters and this
// rank's shards are what these made of them: see [optim.SGD.Committed]. A gather
// that failed leaves them torn.
func (o *Optimizer[O]) Committed() (steps int, whole bool) {
	steps, whole = o.local.Committed()
	return steps, whole && o.failed() == nil
}

// State is what this rank keeps from step to step: that of its parts, each a row of
// elements that knows its place in the whole ([nn.Buffer.Span]), by names such as
// "NAME.velocity". Gather has that of all ranks.
func (o *Optimizer[O]) State() ([]*nn.Buffer, error) {
	state, err := o.kept()
	if err != nil {
		return nil, err
	}
	var all []*nn.Buffer
	for _, k := range state {
		b := k.Buffer
		if len(k.Shape()) > 0 {
			b = b.Divided(nn.Span{Whole: k.whole(), Lo: k.part.lo, Hi: k.part.hi})
		}
		all = append(all, b)
	}
	return all, nil
}

// BeginLoad says that the program is about to write the parameters, or what
// State returned: see [optim.SGD.BeginLoad].
func (o *Optimizer[O]) BeginLoad() {
	o.local.BeginLoad()
	o.reset(-1)
}

// EndLoad says that these are whole again, as after so many steps.
func (o *Optimizer[O]) EndLoad(steps int) {
	o.reset(steps)
	o.local.EndLoad(steps)
}

// SwapParameters says that other numbers take the place of the parameters until back: see
// [optim.SGD.SwapParameters].
func (o *Optimizer[O]) SwapParameters() (restored func()) { return o.local.SwapParameters() }

func (o *Optimizer[O]) reset(steps int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.gathers, o.updated = nil, steps
}

// updates is the number of steps that this rank's shards have made, and whether
// they are what these made of them, whatever became of the parameters elsewhere.
func (o *Optimizer[O]) updates() (steps int, whole bool) {
	if steps, whole = o.local.Committed(); whole {
		return steps, true
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.updated > steps {
		return o.updated, true
	}
	return steps, false
}

// stepHook is the optimizer as the local one tells it of its steps.
type stepHook[O Local] Optimizer[O]

// Updated marks the end of a bucket's updates.
func (t *stepHook[O]) Updated(p *nn.Parameter) {
	b := t.last[p]
	if b == nil {
		return
	}
	dev := t.shards.pg.Device()
	if profile.Of(dev).On() {
		b.done = dev.Compute().Record() // the same point, with a time
	} else {
		b.done = dev.Compute().Mark()
	}
}

// Complete gathers the buckets, each behind its updates.
func (t *stepHook[O]) Complete() error {
	o := (*Optimizer[O])(t)
	steps, _ := o.local.Committed()
	o.mu.Lock()
	o.updated, o.gathers = steps+1, o.gathers[:0]
	o.mu.Unlock()
	trace := profile.Of(o.shards.pg.Device())
	works := make([]*comm.Work, len(o.shards.buckets))
	for i := range o.shards.buckets {
		b := &o.shards.buckets[i]
		works[i] = o.shards.pg.With(comm.CallOptions{Name: b.name + " of parameters", After: b.done}).AllGather(b.flat, b.shard)
		if trace.On() {
			trace.Add(profile.Span{
				Track: profile.Communication, Name: "AllGather " + b.name, Begin: works[i].Started(), End: works[i].Ended(),
				Args: []profile.Arg{{Name: "bucket", Value: i}, {Name: "bytes", Value: b.flat.Bytes()}},
			})
		}
	}
	o.mu.Lock()
	o.gathers = works
	o.mu.Unlock()
	for _, v := range o.whole {
		if v.Grad() != nil {
			v.BumpVersion()
		}
	}
	return o.shards.wait(works)
}

// wait makes the compute stream wait for gathers. When it returns an error, the
// group is broken, and none of them uses the buckets any more.
func (s *shards) wait(works []*comm.Work) error {
	ctx := context.Background() // the calls have deadlines of their own
	for i, w := range works {
		if err := w.Wait(ctx); err != nil {
			s.pg.Abort(err)
			for _, w := range works[i:] {
				w.Sync(ctx)
			}
			return fmt.Errorf("gathering parameters: %w", err)
		}
	}
	return nil
}
