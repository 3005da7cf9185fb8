package zero

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/capture"
	"github.com/goddp/goddp/internal/gradsink"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
	"github.com/goddp/goddp/profile"
)

// Optimizer makes the steps of a [Model]. On each rank an optimizer of type O updates the shards of
// that rank. One goroutine drives it. Other goroutines may call Committed.
type Optimizer[O Local] struct {
	shards   *shards
	model    *ddp.Model
	newLocal func(params []*nn.Parameter) (O, error)
	locals[O]
	lr        *float64 // the argument of SetLR; nil: none
	committed func()   // see OnCommit

	mu           sync.Mutex
	gathers      []*comm.Work // the gathers of the last step
	updated      int          // the number of steps whose updates this rank has enqueued completely
	isCatchingUp bool         // within catchUp
}

// locals are the optimizers of one layout.
type locals[O Local] struct {
	local O
	state []kept                    // the state of local
	last  map[*nn.Parameter]*bucket // by part: the bucket in which this part is updated last
	rest  []*nn.Parameter           // the parts that local does not optimize
	whole []*autograd.Variable      // the parameters of the parts that local optimizes

	copy    O    // makes the updates of the copied shards; undefined without copies
	isStale bool // the copies lack a state that was loaded
}

// build makes the optimizers of the present layout, and allocates their state.
func (o *Optimizer[O]) build() (err error) {
	s := o.shards
	for _, p := range slices.Concat(s.parts, s.copied) {
		gradsink.Set(p.local.Var(), (*gradient)(p), gradsink.Of(p.Var()).State)
	}
	l := locals[O]{last: map[*nn.Parameter]*bucket{}}
	if l.local, err = o.newLocal(parametersOf(s.parts)); err != nil {
		return err
	}
	parts := map[*nn.Parameter]*part{}
	for _, p := range s.parts {
		parts[p.local] = p
	}
	ends := make([]*nn.Parameter, len(s.buckets))
	for _, p := range l.local.Parameters() {
		part := parts[p]
		if part == nil {
			return fmt.Errorf("newLocal returned an optimizer of parameter %q, which was not among newLocal's arguments", p.Name())
		}
		ends[part.bucket.index] = p
		l.whole = append(l.whole, part.Var())
		delete(parts, p)
	}
	l.rest = slices.Collect(maps.Keys(parts))
	for i, p := range ends {
		if p != nil {
			l.last[p] = s.buckets[i]
		}
	}
	l.local.SetStepHook((*stepHook[O])(o))
	if d, ok := any(l.local).(Divisible); ok {
		if s.copies {
			return fmt.Errorf("CopyShards is set, but copies of shards lack the whole matrices that %T needs", l.local)
		}
		if err := d.DivideParts(s.rank, s.size, s.exchange); err != nil {
			return err
		}
	}
	if l.state, err = keptOf(l.local, s.parts); err != nil {
		return err
	}
	if s.copied != nil {
		if l.copy, err = o.newLocal(parametersOf(s.copied)); err != nil {
			return err
		}
		if _, err = keptOf(l.copy, s.copied); err != nil {
			return err
		}
	}
	o.locals = l
	if o.lr != nil {
		o.SetLR(*o.lr)
	}
	return nil
}

// Local returns the optimizer of this rank's shards. The program may change its options, which must be the same on all
// ranks. After a change of the ranks ([Optimizer.Regroup]) Local returns another one, with the options that newLocal
// sets. With Options.CopyShards use Locals.
func (o *Optimizer[O]) Local() O { return o.local }

// Locals returns the optimizers that make this rank's updates: Local, and with copies of shards the one that updates
// them, which must have the same options.
func (o *Optimizer[O]) Locals() []O {
	if o.shards.copied == nil {
		return []O{o.local}
	}
	return []O{o.local, o.copy}
}

// Group returns the group of the ranks that share the state. These ranks must agree on a step. Within
// [Model.Join] Group waits for the outcome of the last pass, and returns nil if all ranks skip the
// step. Then no agreement is needed, and a rank without inputs, which does not make skipped steps, would not
// take part in it.
func (o *Optimizer[O]) Group() *comm.ProcessGroup {
	if o.shards.join.isActive && o.shards.skipped() {
		return nil
	}
	return o.shards.pg
}

// Parameters returns this rank's parts of the optimized parameters, with the names and shapes of
// the whole parameters ([nn.NewPart]). Some parts may be empty. The gradients of the parts are averages over the ranks.
func (o *Optimizer[O]) Parameters() []*nn.Parameter { return o.local.Parameters() }

// ZeroGrad zeroes the gradients of all parameters. This includes parameters that are not optimized, because their
// gradients are reduced to shards too.
func (o *Optimizer[O]) ZeroGrad() {
	o.shards.prepared = nil
	o.local.ZeroGrad()
	for _, p := range o.rest {
		p.Var().ZeroGrad()
	}
}

// SetLR sets the learning rate of the local optimizers on this rank. It panics if they are not [optim.LRSetter]s.
func (o *Optimizer[O]) SetLR(lr float64) {
	o.lr = &lr
	for _, l := range o.Locals() {
		any(l).(optim.LRSetter).SetLR(lr)
	}
}

// KeepLR stores the learning rates of the local optimizers' groups, and returns a function that restores them. That
// function does nothing if they are not [optim.LRKeeper]s.
func (o *Optimizer[O]) KeepLR() (restore func()) {
	before, restores := o.lr, []func(){}
	for _, l := range o.Locals() {
		if k, ok := any(l).(optim.LRKeeper); ok {
			restores = append(restores, k.KeepLR())
		}
	}
	return func() {
		o.lr = before
		for _, restore := range restores {
			restore()
		}
	}
}

// OnCommit sets the function that is called when this rank has made the updates of a step; nil: none. See
// [optim.SGD.OnCommit].
func (o *Optimizer[O]) OnCommit(f func()) { o.committed = f }

// ClipGradNorm is [optim.ClipGradNorm] for the gradients of the whole model. All ranks call it
// after the same backward passes; within [Model.Join], call it in JoinOptions.Step. It sets opts.Total. An error
// aborts the group, because the other ranks wait for this rank's part of the norm.
func (o *Optimizer[O]) ClipGradNorm(max float64, opts *optim.ClipOptions) (norm *autograd.Variable, err error) {
	if join := &o.shards.join; join.isActive && !join.customStep {
		return nil, fmt.Errorf("zero: rank %d: ClipGradNorm was called within Join: call it in JoinOptions.Step, so that ranks without inputs clip too", o.shards.pg.Rank())
	}
	group := o.Group()
	reduction := comm.Sum
	clip := *cmp.Or(opts, &optim.ClipOptions{})
	if math.IsInf(clip.NormType, 1) {
		reduction = comm.Max
	}
	clip.Total = func(sum device.Tensor) error {
		if group == nil { // all ranks skip the step
			return nil
		}
		return group.With(&comm.CallOptions{Name: "norm of gradients"}).AllReduce(sum, reduction).Wait(group.Context())
	}
	norm, err = optim.ClipGradNorm(o.Parameters(), max, &clip)
	if err != nil && group != nil && capture.Of(group.Device()) == nil {
		group.Abort(err)
	}
	return norm, err
}

// Step updates the parameters by their gradients, on all ranks. See the package documentation, and
// [optim.SGD.Step] for errors. All ranks call it after the same backward passes. If a gather fails,
// this Step returns an [*optim.InconsistentError]; if this Step did not wait for the gather, the
// next Step returns it. A step that leaves the optimizer inconsistent aborts the group, because the
// other ranks lack this rank's shards.
func (o *Optimizer[O]) Step() error { return o.StepScaled(optim.Scaled{}) }

// StepScaled is Step for gradients of a scaled loss. The ranks must have agreed on the overflow:
// see package amp.
func (o *Optimizer[O]) StepScaled(s optim.Scaled) error {
	join := &o.shards.join
	join.owesStep = false
	if join.isActive && !join.customStep && s.Err != nil {
		return fmt.Errorf("zero: rank %d: a scaled step was made within Join: make it in JoinOptions.Step, so that ranks without inputs make it too", o.shards.pg.Rank())
	}
	if err := o.begin(); err != nil {
		return err
	}
	if r := capture.Of(o.shards.pg.Device()); r != nil {
		return o.capture(r, s)
	}
	if o.shards.pg.Survives() && !o.shards.skipped() {
		if err := o.prepare(s); err != nil {
			steps, _ := o.local.Committed()
			return fmt.Errorf("zero: step %d: %w", steps+1, err)
		}
	}
	err := o.update(s)
	if errors.As(err, new(*optim.InconsistentError)) {
		o.shards.pg.Abort(err) // the other ranks may wait for this rank's shards
	}
	return err
}

// update makes the updates of a step, first those of the copied shards.
func (o *Optimizer[O]) update(s optim.Scaled) error {
	if o.hasCopies() {
		if err := o.shards.refreshCopies(); err != nil {
			return err
		}
		if err := o.copy.StepScaled(s); err != nil {
			return err
		}
	}
	return o.local.StepScaled(s)
}

// begin prepares a step. It returns an error if a gather of the last step has failed.
func (o *Optimizer[O]) begin() error {
	err := o.failed()
	if err == nil {
		err = o.shards.awaitAll()
	}
	if err != nil {
		n := len(o.shards.parts)
		return &optim.InconsistentError{Step: o.updated, Updated: n, Params: n, Err: err}
	}
	for _, b := range o.shards.buckets {
		b.done = nil // a step that was skipped may have set it
	}
	return nil
}

// Capturable returns o. It marks an optimizer that takes part in captured steps: see [autograd.Capture].
func (o *Optimizer[O]) Capturable() any { return o }

// capture captures a step. The graph of a replay makes the updates. The replay starts the gathers once it is known
// that no update was skipped, as a step that is not captured does. So a replay on one rank and an uncaptured step
// on another rank start the same gathers.
func (o *Optimizer[O]) capture(r *capture.Step, s optim.Scaled) error {
	switch {
	case !capture.IsCapturable(o.local):
		return r.Refuse("%T does not take part in captured steps", o.local)
	case o.shards.pg.Survives():
		return r.Refuse("in a job that survives the loss of ranks, ddp/zero waits for all ranks before the updates")
	}
	r.Before(o.begin)
	if err := o.local.StepScaled(s); err != nil {
		return err
	}
	r.After(func(error) error {
		if steps, whole := o.local.Committed(); !whole {
			o.shards.pg.Abort(fmt.Errorf("zero: the parameters are inconsistent after step %d on rank %d", steps+1, o.shards.pg.Rank()))
		}
		return nil
	})
	return nil
}

// failed returns the error of a gather of the last step that is known to have failed.
func (o *Optimizer[O]) failed() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, w := range o.gathers {
		if _, err := w.Done(); err != nil {
			return err
		}
	}
	return nil
}

// Committed returns the number of committed steps, and whether the parameters and this rank's
// shards are exactly the result of these steps: see [optim.SGD.Committed]. After a failed gather whole is
// false.
func (o *Optimizer[O]) Committed() (steps int, whole bool) {
	steps, whole = o.local.Committed()
	return steps, whole && o.failed() == nil
}

// State returns the optimizer's state for this rank's parts. Each tensor is one-dimensional and
// knows its place in the whole tensor ([nn.Buffer.Span]). Names are like "NAME.velocity". Gather collects
// the state of all ranks.
func (o *Optimizer[O]) State() ([]*nn.Buffer, error) {
	state, err := keptOf(o.local, o.shards.parts)
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

// BeginLoad announces that the program will write the parameters, or the tensors that State
// returned: see [optim.SGD.BeginLoad].
func (o *Optimizer[O]) BeginLoad() {
	o.shards.settle()
	o.local.BeginLoad()
	o.reset(-1)
}

// EndLoad announces that the parameters and the state are complete again, and are those after the given number
// of steps.
func (o *Optimizer[O]) EndLoad(steps int) {
	o.reset(steps)
	o.local.EndLoad(steps)
	o.isStale = true
}

// SwapParameters announces that the program replaces the values of the parameters until it calls
// restored: see [optim.SGD.SwapParameters].
func (o *Optimizer[O]) SwapParameters() (restored func()) { return o.local.SwapParameters() }

func (o *Optimizer[O]) reset(steps int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.gathers, o.updated = nil, steps
}

// stepHook implements optim.StepHook for an Optimizer, without exporting the methods.
type stepHook[O Local] Optimizer[O]

// Updated records the event after a bucket's last update.
func (t *stepHook[O]) Updated(p *nn.Parameter) {
	b := t.last[p]
	if b == nil {
		return
	}
	dev := t.shards.pg.Device()
	if capture.Of(dev) != nil {
		return // the gathers of a replay run after the whole graph
	}
	if profile.Of(dev).On() {
		b.done = dev.Compute().Record() // an event with a time, for the trace
	} else {
		b.done = dev.Compute().Mark()
	}
}

// Complete starts the gathers.
func (t *stepHook[O]) Complete() error {
	o := (*Optimizer[O])(t)
	steps, _ := o.local.Committed()
	o.mu.Lock()
	o.updated, o.gathers = steps+1, o.gathers[:0]
	o.mu.Unlock()
	if o.isCatchingUp { // no other rank gathers
		return nil
	}
	if o.committed != nil {
		o.committed() // before the gathers, because a job that survives their failure goes on after this step
	}
	if !o.shards.inSlots() {
		works := o.shards.gather()
		o.mu.Lock()
		o.gathers = works
		o.mu.Unlock()
	}
	for _, v := range o.whole {
		if v.Grad() != nil {
			v.BumpVersion()
		}
	}
	return nil
}
