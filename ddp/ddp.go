package ddp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/internal/buckets"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/capture"
	"github.com/goddp/goddp/internal/gradsink"
	"github.com/goddp/goddp/internal/jobenv"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/profile"
)

// Model is a module whose gradients are averaged over a process group. It is itself a module. One
// goroutine drives it.
type Model struct {
	module           nn.Model
	pg               *comm.ProcessGroup
	opts             Options
	params           []*nn.Parameter // the parameters that require a gradient
	buffers          []*nn.Buffer    // the buffers that each pass sets to the values of rank 0
	reducer          *buckets.Reducer
	hook             reducer.Hook // nil: none
	replicas         *replicas
	noSync           bool // within NoSync
	isNoSyncCaptured bool // the outermost NoSync is a part of the step that is being captured
	isJoining        bool // within Join
	hasWarned        bool // that a pass does not go through the model
	trace            *profile.Recorder
	times            *timing // nil without Options.Stats
	passState
}

// passState is the state that a pass changes. A captured step restores it.
type passState struct {
	passes     int          // the number of passes that reduced
	isReducing bool         // the current pass reduces
	inBackward bool         // within a backward pass through the model's output
	passStart  device.Event // the start of the current pass; nil if nothing records times
	sent       *comm.Work   // the broadcast of the buffers in the current pass
}

// New wraps a module, or any other model. It places parameters that are on no device on the group's device. It
// checks that the parameters have the same number, names, shapes and types on all ranks. Then it sets the
// parameters, their masters ([nn.CastOptions]) and the buffers to the values of rank 0. All ranks call New, in the
// same order as their other collectives. The group's timeout bounds each collective that New makes.
func New(module nn.Model, pg *comm.ProcessGroup, opts *Options) (*Model, error) {
	switch {
	case pg == nil:
		return nil, fmt.Errorf("ddp: %w", comm.ErrNoGroup)
	case module == nil:
		return nil, errors.New("ddp: no model")
	}
	if _, ok := module.(interface{ Unwrap() nn.Model }); ok {
		return nil, fmt.Errorf("ddp: the module is a %T, which already wraps a module: pass module.Unwrap() to New", module)
	}
	o := *cmp.Or(opts, &Options{})
	m := &Model{module: module, pg: pg, opts: o, hook: o.Hook, trace: profile.Of(pg.Device())}
	if err := m.init(pg.Context()); err != nil {
		return nil, fmt.Errorf("ddp: %w", err)
	}
	return m, nil
}

// init does the work of New that can fail.
func (m *Model) init(ctx context.Context) error {
	scan, err := jobenv.NaNCheck(os.LookupEnv)
	m.opts.CheckNonFinite = m.opts.CheckNonFinite || scan
	o := m.opts
	all, buffers, ignored := o.shared(m.module)
	if err := comm.Agree(ctx, m.pg, errors.Join(err, ignored, o.check(), nn.PlaceExcept(m.module, m.pg.Device(), o.Seed, m.isHeld))); err != nil {
		return err
	}
	if err := m.connect(ctx, all, buffers); err != nil {
		return err
	}
	mine := m.unheld(all)
	masters, err := masters(ctx, m.pg, mine)
	if err != nil {
		return err
	}
	if !o.SkipInitSync {
		state := append(variables(mine), variables(buffers)...)
		for _, p := range mine { // in the same order on all ranks
			if master := masters[p]; master != nil {
				state = append(state, master)
			}
		}
		if err := broadcast(m.pg, "initial parameters", state, 0).Wait(ctx); err != nil {
			return err
		}
		for p, master := range masters { // the broadcast has written them
			p.SetMaster(master)
		}
	}
	m.own()
	return nil
}

// isHeld reports whether the hook holds a parameter: the hook places it, and makes it and its master equal on all ranks.
func (m *Model) isHeld(p *nn.Parameter) bool {
	h, ok := m.hook.(interface{ Holds(p *nn.Parameter) bool })
	return ok && h.Holds(p)
}

// unheld returns the parameters that the hook does not hold.
func (m *Model) unheld(all []*nn.Parameter) []*nn.Parameter {
	return slices.DeleteFunc(slices.Clone(all), m.isHeld)
}

// connect makes a reducer for the parameters in all that require a gradient, and what else depends on the ranks of
// the group.
func (m *Model) connect(ctx context.Context, all []*nn.Parameter, buffers []*nn.Buffer) error {
	o := m.opts
	m.params = nil
	seen := map[any]bool{}
	for _, p := range all {
		if id := p.Identity(); !p.Frozen() && !seen[id] { // a variable with several names counts once
			seen[id] = true
			m.params = append(m.params, p)
		}
	}
	r, err := buckets.New(ctx, m.pg, o.gradients(m.params), &buckets.Options{
		BucketCapMB: o.BucketCapMB, FirstBucketCapMB: o.FirstBucketCapMB, BucketCapsMB: o.BucketCapsMB, Prescaled: true,
		Unused: o.unused(), CheckNonFinite: o.CheckNonFinite, Hook: o.Hook, BeforeLast: m.sendBuffers,
		Alike: []buckets.List{trained(all), o.described(), buckets.Listed("buffer", listed(buffers))},
	})
	if err != nil {
		return err
	}
	m.reducer = r
	m.replicas, err = newReplicas(m.pg, o.CheckReplicas, all)
	if err := comm.Agree(ctx, m.pg, err); err != nil {
		return err
	}
	if !o.LocalBuffers {
		m.buffers = buffers
	}
	if o.Stats {
		m.times = newTiming(r)
	}
	return nil
}

// own makes the model's reducer the owner of the gradients, and divides random numbers among the ranks.
func (m *Model) own() {
	for i, p := range m.params {
		gradsink.Set(p.Var(), &sink{m, m.reducer, i}, m.reducer.State(i))
	}
	autograd.Generator(m.pg.Device()).SetShard(m.pg.Rank(), m.pg.Size())
}

// Forward applies the module. A backward pass through the result averages the gradients. Forward panics if
// the model given to New is not an [nn.Module]; call such a model within Run.
func (m *Model) Forward(x *autograd.Variable) *autograd.Variable {
	module, ok := m.module.(nn.Module)
	if !ok {
		panic(fmt.Errorf("ddp: %T has no method Forward(x *autograd.Variable): call the module in a function that you pass to Run", m.module))
	}
	return m.Run(func() *autograd.Variable { return module.Forward(x) })
}

// Run calls forward, which applies the module with any number of arguments, and returns its result. A
// backward pass through the result averages the gradients. If the module has further results, pass them
// to Output:
//
//	var logits *autograd.Variable
//	loss := model.Run(func() (loss *autograd.Variable) {
//		logits, loss = net.Forward(ids, mask)
//		return loss
//	})
func (m *Model) Run(forward func() *autograd.Variable) *autograd.Variable {
	start := m.mark()
	if h, ok := m.hook.(forwardHook); ok {
		h.BeginForward()
		defer h.EndForward()
	}
	y := forward()
	m.span("forward", start)
	return m.Output(y)
}

// SetTraining sets the mode of the module: see [nn.Train].
func (m *Model) SetTraining(on bool) {
	if s, ok := m.module.(interface{ SetTraining(on bool) }); ok {
		s.SetTraining(on)
	}
}

// Output registers y as a further result of the module: a backward pass through y averages the
// gradients too. Use the variable that Output returns. If several outputs have a backward pass each,
// each pass averages, and the gradients are the same as after one pass through all outputs. If no
// single pass reaches all parameters, this needs Options.FindUnusedParameters.
func (m *Model) Output(y *autograd.Variable) *autograd.Variable {
	if o, ok := m.hook.(autograd.Observer); ok {
		y = autograd.Observe(y, o) // notify the hook first, because the model may start reductions at once
	}
	if h, ok := m.hook.(forwardHook); ok {
		y = h.Observe(y)
	}
	return autograd.Observe(y, (*observer)(m))
}

// forwardHook is a hook that is notified of forward passes, as that of package ddp/zero.
type forwardHook interface {
	BeginForward()
	EndForward()
	// Observe returns another handle to y, a result of the forward pass that began last.
	Observe(y *autograd.Variable) *autograd.Variable
}

// NoSync calls f. Backward passes within f accumulate gradients and reduce nothing. The first pass after
// f reduces the sum.
func (m *Model) NoSync(f func() error) error {
	if h, ok := m.hook.(interface{ ReducesAlways() bool }); ok && h.ReducesAlways() {
		if m.isJoining { // a rank without inputs would make a step after each pass
			return errors.New("ddp: NoSync within Join: each pass of this model reduces, so want one pass in each step")
		}
		return f()
	}
	was, captured := m.noSync, m.isNoSyncCaptured
	m.noSync, m.isNoSyncCaptured = true, captured || !was && capture.Of(m.pg.Device()) != nil
	defer func() { m.noSync, m.isNoSyncCaptured = was, captured }()
	return f()
}

// Whole calls f. All parameters are whole on each rank: package ddp/zero has a model for which this is otherwise.
func (m *Model) Whole(f func() error) error { return f() }

// OnRank calls f on one rank, for example to save the model, and returns its error on all ranks, which all call OnRank. The
// other ranks wait for f no longer than a collective may take.
func (m *Model) OnRank(rank int, f func() error) error {
	if rank < 0 || rank >= m.pg.Size() {
		return fmt.Errorf("ddp: OnRank of rank %d, want 0 to %d", rank, m.pg.Size()-1)
	}
	var err error
	if m.pg.Rank() == rank {
		err = f()
	}
	return comm.Agree(m.pg.Context(), m.pg, err)
}

// Parameters returns the parameters of the module, under the names that the module gives them.
func (m *Model) Parameters() []*nn.Parameter { return m.module.Parameters() }

// Buffers returns the buffers of the module.
func (m *Model) Buffers() []*nn.Buffer { return nn.Buffers(m.module) }

// Unwrap returns the module that New was given.
func (m *Model) Unwrap() nn.Model { return m.module }

// Passes returns the number of backward passes through the model that have averaged gradients.
func (m *Model) Passes() int { return m.passes }

// observer implements autograd.Observer for a Model, without exporting the methods.
type observer Model

func (o *observer) BeginBackward(reached func(*autograd.Variable) bool) {
	m := (*Model)(o)
	m.begin(!m.noSync && m.reducer.Left() == nil)
	m.inBackward = true
	m.reducer.Begin(m.isReducing, func(i int) bool { return reached(m.params[i].Var()) })
}

func (o *observer) EndBackward(err error) error {
	m := (*Model)(o)
	m.inBackward = false
	if errors.As(err, new(*autograd.PanicError)) {
		m.pg.Abort(fmt.Errorf("ddp: %w", err)) // the panic may end this rank: no other rank must wait for it
	}
	return m.end("backward", err)
}

// begin prepares a pass, before the reducer begins it.
func (m *Model) begin(reduces bool) {
	m.checkOwner()
	if r := capture.Of(m.pg.Device()); r != nil {
		m.beginCaptured(r)
	}
	m.passStart, m.isReducing = m.mark(), reduces
	if reduces {
		m.passes++
		m.replicas.begin(m.passes) // before the reducer may start the reduction of buckets that this rank does not use
	}
}

// end ends a pass. err is the error that cut it short, or nil.
func (m *Model) end(name string, err error) error {
	m.span(name, m.passStart, m.passArgs()...)
	ctx := m.pg.Context()
	err = m.reducer.Finish(ctx, err)
	if !m.isReducing {
		return err
	}
	var who buckets.Attendance // the zero value, outside of Join, says that all ranks made the pass
	if m.isJoining && (m.replicas.checking() || len(m.buffers) > 0) {
		who = m.reducer.Attendance()
	}
	var drift *ReplicaDriftError
	if e := m.replicas.end(ctx, m.passes, who.Away); e != nil && (err == nil || errors.As(e, &drift)) { // if the group is broken, err already says so
		err = m.reducer.Reject(e)
	}
	if e := m.syncBuffers(ctx, who.First()); e != nil && err == nil {
		err = m.reducer.Reject(e)
	}
	m.times.end(err)
	m.report()
	return err
}

// sendBuffers starts the broadcast of rank 0's buffers, with the values that its forward pass has written. It does
// so even if the pass fails. The reducer calls it after all operations of the pass and before the last bucket, so
// that waiting for the buffers does not wait for gradients. Within Join rank 0 may not have made the pass
// itself; there syncBuffers sends the buffers.
func (m *Model) sendBuffers() {
	if len(m.buffers) > 0 && !m.isJoining && m.pg.Size() > 1 {
		m.sent = broadcast(m.pg, "buffers", variables(m.buffers), 0)
	}
}

// syncBuffers makes the compute stream wait for the buffers. Within Join it first broadcasts the buffers of
// the rank `first`, the lowest rank that made the pass itself. -1 means that no rank did.
func (m *Model) syncBuffers(ctx context.Context, first int) error {
	if m.isJoining && len(m.buffers) > 0 && first >= 0 {
		m.sent = broadcast(m.pg, "buffers", variables(m.buffers), first)
	}
	if m.sent == nil {
		return nil
	}
	sent := m.sent
	m.sent = nil
	return sent.Wait(ctx)
}

// ReplacedError is the panic value of a backward pass through a model that no longer owns the gradients
// of its parameters, because the module was wrapped again.
type ReplacedError struct {
	Rank  int
	Param string
}

func (e *ReplacedError) Error() string {
	return fmt.Sprintf("ddp: rank %d: this model no longer owns the gradient of %q: use the model that New returned last", e.Rank, e.Param)
}

// checkOwner panics if another model owns the gradient of a parameter.
func (m *Model) checkOwner() {
	for _, p := range m.params {
		if s, _ := gradsink.Of(p.Var()).Sink.(*sink); s == nil || s.m != m {
			panic(&ReplacedError{m.pg.Rank(), p.Name()})
		}
	}
}

// mark records an event on the compute stream. If neither a trace nor Options.Stats needs times, it returns nil.
func (m *Model) mark() device.Event {
	if !m.trace.On() && m.times == nil {
		return nil
	}
	return m.pg.Device().Compute().Record()
}

// passArgs returns the arguments of a backward pass's span in a trace.
func (m *Model) passArgs() []profile.Arg {
	if !m.trace.On() {
		return nil
	}
	s := m.reducer.Stats()
	return []profile.Arg{
		{Name: "pass", Value: m.passes}, {Name: "reduces", Value: m.isReducing},
		{Name: "buckets", Value: len(s.Buckets)}, {Name: "unused parameters", Value: len(s.Unused)},
	}
}

// span records a span from start, an event that mark returned, until now.
func (m *Model) span(name string, start device.Event, args ...profile.Arg) {
	if start == nil {
		return
	}
	s := profile.Span{Track: profile.Compute, Name: name, Begin: start, End: m.mark(), Args: args}
	m.trace.Add(s)
	m.times.add(s)
}

// sink implements gradsink.Sink for the gradient of parameter i.
type sink struct {
	m *Model
	r *buckets.Reducer
	i int
}

// Divided reports whether the hook leaves each rank only a part of the gradients.
func (s *sink) Divided() bool {
	d, ok := s.m.hook.(interface{ Divided() bool })
	return ok && d.Divided()
}

func (s *sink) Grad() device.Tensor { return s.r.Grad(s.i) }
func (s *sink) Settle() {
	if s.m.inBackward {
		s.r.Claim(s.i)
	}
	s.r.Settle(s.i)
}
func (s *sink) Scale() float64      { return s.r.Scale() }
func (s *sink) Pending() bool       { return s.r.Pending() }
func (s *sink) Err() error          { return s.r.Err() }
func (s *sink) Skip() device.Tensor { return s.r.Flags() }

// Ready notifies the reducer, unless the pass does not go through the model's output. If no pass has gone through it so
// far, the program probably calls the module instead of the model, and Ready says so once.
func (s *sink) Ready(e device.Event) {
	switch {
	case s.m.inBackward:
		s.r.Ready(s.i, e)
	case s.m.passes == 0 && !s.m.noSync && !s.m.hasWarned:
		s.m.hasWarned = true
		s.m.pg.Log().Warn("ddp: a backward pass does not go through the model, so its gradients are not averaged: call Forward or Run of the model that New returned",
			"parameter", s.m.params[s.i].Name())
	}
}
