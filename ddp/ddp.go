package ddp

import (
	"context"
	"errors"
	"fmt"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/profile"
)

// Model is a module whose gradients are averaged over a process group. It is
// itself a module. It is driven by one goroutine.
type Model struct {
	module   nn.Model
	pg       *comm.ProcessGroup
	params   []*nn.Parameter // those that require a gradient
	buffers  []*nn.Buffer    // those that a pass sets to rank 0's
	sent     *comm.Work      // of the pass: the buffers, on their way
	reducer  *reducer.Reducer
	hook     reducer.Hook // nil: none
	replicas *replicas
	noSync   bool
	joining  bool // within Join
	within   bool // a backward pass through the model's output
	reduces  bool // the pass under way
	passes   int  // that reduced
	trace    *profile.Recorder
	times    *timing      // nil where nobody asks for them
	begun    device.Event // of the backward pass that is traced
}

// New wraps a module, or any other model. Its parameters are placed on the group's device if they
// have no place yet, checked to be alike on all ranks, and, with its buffers,
// set to those of rank 0. All ranks call it, in the same order as their other
// collectives; each of those that it makes is bounded by the group's timeout.
func New(module nn.Model, pg *comm.ProcessGroup, opts *Options) (*Model, error) {
	switch {
	case pg == nil:
		return nil, fmt.Errorf("ddp: %w", comm.ErrNoGroup)
	case module == nil:
		return nil, errors.New("ddp: no model")
	}
	var o Options
	if opts != nil {
		o = *opts
	}
	m := &Model{module: module, pg: pg, hook: o.Hook, trace: profile.Of(pg.Device())}
	if err := m.init(context.Background(), o); err != nil { // its calls have deadlines of their own
		return nil, reducer.OfRank("ddp", pg.Rank(), err)
	}
	autograd.Generator(pg.Device()).SetShard(pg.Rank(), pg.Size())
	return m, nil
}

func (m *Model) init(ctx context.Context, o Options) error {
	scan, err := nanCheck()
	all, buffers, ignored := o.shared(m.module)
	if err := comm.Agree(ctx, m.pg, errors.Join(err, ignored, o.check(), nn.Place(m.module, m.pg.Device(), o.Seed))); err != nil {
		return err
	}
	seen := map[*autograd.Variable]bool{}
	for _, p := range all {
		if v := p.Var(); v.RequiresGrad() && !seen[v] { // one that is shared counts once
			seen[v] = true
			m.params = append(m.params, p)
		}
	}
	r, err := reducer.New(ctx, m.pg, o.gradients(m.params), &reducer.Options{
		BucketCapMB: o.BucketCapMB, FirstBucketCapMB: o.FirstBucketCapMB, BucketCapsMB: o.BucketCapsMB, Prescaled: true,
		Unused: o.unused(), CheckNonFinite: o.CheckNonFinite || scan, Hook: o.Hook, BeforeLast: m.sendBuffers,
		Alike: []reducer.List{trained(all), o.described(), reducer.Listed("buffer", listed(buffers))},
	})
	if err != nil {
		return err
	}
	m.reducer = r
	m.replicas, err = newReplicas(m.pg, o.CheckReplicas, all)
	if err := comm.Agree(ctx, m.pg, err); err != nil {
		return err
	}
	if !o.SkipInitSync {
		state := append(variables(all), variables(buffers)...)
		if err := broadcast(m.pg, "initial parameters", state, 0).Wait(ctx); err != nil {
			return err
		}
	}
	if !o.LocalBuffers {
		m.buffers = buffers
	}
	if o.Stats {
		m.times = newTiming(r)
	}
	for i, p := range m.params {
		p.Var().SetGradSink(&sink{m, r, i})
	}
	return nil
}

// Forward applies the module. A backward pass through its result averages the
// gradients. It panics where New was given a model that is no [nn.Module]: that is
// applied within Run.
func (m *Model) Forward(x *autograd.Variable) *autograd.Variable {
	module, ok := m.module.(nn.Module)
	if !ok {
		panic(fmt.Errorf("ddp: Forward of a model of %T, which has no Forward of one variable: apply it within Run", m.module))
	}
	return m.Run(func() *autograd.Variable { return module.Forward(x) })
}

// Run runs forward, which applies the module to whatever its Forward takes, and makes
// the result one of the model's: a backward pass through it averages the gradients.
// Further results are made so by Output:
//
//	var logits *autograd.Variable
//	loss := model.Run(func() (loss *autograd.Variable) {
//		logits, loss = net.Forward(ids, mask)
//		return loss
//	})
func (m *Model) Run(forward func() *autograd.Variable) *autograd.Variable {
	begun := m.mark()
	y := forward()
	m.span("forward", begun)
	return m.Output(y)
}

// SetTraining sets the module's mode: see [nn.Train].
func (m *Model) SetTraining(on bool) {
	if s, ok := m.module.(interface{ SetTraining(on bool) }); ok {
		s.SetTraining(on)
	}
}

// Output makes y, which the module's Forward computed beside its result, a
// result of the model's as well: a backward pass through it averages the
// gradients. One backward pass for each of several outputs averages several
// times, and leaves the same sum as one for all of them does; where none of
// them reaches all parameters, that takes Options.FindUnusedParameters.
func (m *Model) Output(y *autograd.Variable) *autograd.Variable {
	if o, ok := m.hook.(autograd.Observer); ok {
		y = autograd.Observe(y, o) // it is told first: the model may reduce at once what a pass does not use
	}
	return autograd.Observe(y, (*observer)(m))
}

// NoSync runs f, within which backward passes accumulate gradients and reduce
// nothing. The first pass after it reduces the sum.
func (m *Model) NoSync(f func() error) error {
	was := m.noSync
	m.noSync = true
	defer func() { m.noSync = was }()
	return f()
}

// Parameters are the module's, under their own names.
func (m *Model) Parameters() []*nn.Parameter { return m.module.Parameters() }

// Buffers are the module's.
func (m *Model) Buffers() []*nn.Buffer { return nn.Buffers(m.module) }

// Unwrap is the module that New was given.
func (m *Model) Unwrap() nn.Model { return m.module }

// Buckets describes the buckets, in the order in which they are reduced.
func (m *Model) Buckets() []reducer.Bucket { return m.reducer.Buckets() }

// observer is the model as autograd tells it of backward passes.
type observer Model

func (o *observer) BeginBackward(reached func(*autograd.Variable) bool) {
	m := (*Model)(o)
	m.begin(!m.noSync && m.reducer.Left() == nil)
	m.within = true
	m.reducer.Begin(m.reduces, func(i int) bool { return reached(m.params[i].Var()) })
}

func (o *observer) EndBackward(err error) error {
	m := (*Model)(o)
	m.within = false
	if errors.As(err, new(*autograd.PanicError)) {
		m.pg.Abort(reducer.OfRank("ddp", m.pg.Rank(), err)) // nobody waits: the panic may end the process
	}
	return m.end("backward", err)
}

// begin is what comes before the reducer's begin of a pass.
func (m *Model) begin(reduces bool) {
	m.checkOwner()
	m.begun, m.reduces = m.mark(), reduces
	if reduces {
		m.passes++
		m.replicas.begin() // before buckets that are complete without this rank's doing
	}
}

// end ends a pass, which err cut short unless it is nil.
func (m *Model) end(name string, err error) error {
	m.span(name, m.begun, m.passArgs()...)
	ctx := context.Background() // bounded by the calls' own timeouts
	err = m.reducer.Finish(ctx, err)
	if !m.reduces {
		return err
	}
	var who reducer.Attendance // all ranks, but within Join
	if m.joining && (m.replicas.checking() || len(m.buffers) > 0) {
		who = m.reducer.Attendance()
	}
	var drift *ReplicaDriftError
	if e := m.replicas.end(ctx, who.Away); e != nil && (err == nil || errors.As(e, &drift)) { // a group that is broken has said so
		err = m.reducer.Reject(e)
	}
	if e := m.syncBuffers(ctx, who.First()); e != nil && err == nil {
		err = m.reducer.Reject(e)
	}
	m.times.end(err)
	m.report()
	return err
}

// sendBuffers starts to set the buffers to rank 0's, as its forward left them,
// whatever becomes of the pass. It is behind all that the pass does with them, and
// before the last bucket, so that what waits for them waits for no gradient. Within
// Join rank 0 may not have made the pass: only the outcome tells who did.
func (m *Model) sendBuffers() {
	if len(m.buffers) > 0 && !m.joining {
		m.sent = broadcast(m.pg, "buffers", variables(m.buffers), 0)
	}
}

// syncBuffers has the compute stream wait for the buffers, within Join those of the
// first rank that made the pass.
func (m *Model) syncBuffers(ctx context.Context, first int) error {
	if m.joining && len(m.buffers) > 0 && first >= 0 {
		m.sent = broadcast(m.pg, "buffers", variables(m.buffers), first)
	}
	if m.sent == nil {
		return nil
	}
	sent := m.sent
	m.sent = nil
	return sent.Wait(ctx)
}

// ReplacedError is the panic value of a backward pass through a model that does
// not have its parameters' gradients any more: its module was wrapped again, or
// recovered.
type ReplacedError struct {
	Rank  int
	Param string
}

func (e *ReplacedError) Error() string {
	return fmt.Sprintf("ddp: rank %d: the gradient of %q is not this model's any more: use the one that New made last", e.Rank, e.Param)
}

// checkOwner panics where a parameter has another sink, whose flags are others.
func (m *Model) checkOwner() {
	mine := m.reducer.Flags().Buf.Addr()
	for _, p := range m.params {
		if p.Var().GradSkip().Buf.Addr() != mine {
			panic(&ReplacedError{m.pg.Rank(), p.Name()})
		}
	}
}

// mark is an event on the compute stream while somebody asks for times.
func (m *Model) mark() device.Event {
	if !m.trace.On() && m.times == nil {
		return nil
	}
	return m.pg.Device().Compute().Record()
}

// passArgs is what a trace shows with a backward pass.
func (m *Model) passArgs() []profile.Arg {
	if !m.trace.On() {
		return nil
	}
	s := m.reducer.Stats()
	return []profile.Arg{
		{Name: "pass", Value: m.passes}, {Name: "reduces", Value: m.reduces},
		{Name: "buckets", Value: len(s.Buckets)}, {Name: "unused parameters", Value: len(s.Unused)},
	}
}

// span records what began at an event of mark's.
func (m *Model) span(name string, begun device.Event, args ...profile.Arg) {
	if begun == nil {
		return
	}
	s := profile.Span{Track: profile.Compute, Name: name, Begin: begun, End: m.mark(), Args: args}
	m.trace.Add(s)
	m.times.add(s)
}

// sink is where one parameter's gradient lives.
type sink struct {
	m *Model
	r *reducer.Reducer
	i int
}

func (s *sink) Fresh() bool         { return s.r.Fresh(s.i) }
func (s *sink) Settle()             { s.r.Settle(s.i) }
func (s *sink) Scale() float64      { return s.r.Scale() }
func (s *sink) Fail(err error)      { s.r.Fail(s.i, err) }
func (s *sink) Pending() bool       { return s.r.Pending() }
func (s *sink) Err() error          { return s.r.GradErr(s.i) }
func (s *sink) Skip() device.Tensor { return s.r.Flags() }
func (s *sink) Zero()               { s.r.Zero(s.i) }

// Grad is the view of the bucket, once there is a gradient in it.
func (s *sink) Grad() device.Tensor {
	if s.r.Zeroed(s.i) {
		return device.Tensor{}
	}
	return s.r.Grad(s.i)
}

// Ready is nothing to the reducer in a pass that went past the model.
func (s *sink) Ready(e device.Event) {
	if s.m.within {
		s.r.Ready(s.i, e)
	}
}
