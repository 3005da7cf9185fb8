package reducer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/profile"
)

// Reducer averages the gradients of one model over the ranks of a group. One goroutine drives it. It
// does not have to be closed: the memory of the buckets is freed by the garbage collector, and a few
// bytes of host memory are freed with the device.
type Reducer struct {
	pg         *comm.ProcessGroup
	params     []Param
	caps       []int
	op         comm.ReduceOp
	hook       Hook
	beforeLast func() // Options.BeforeLast
	unused     Unused
	core       *core
	layout             // of the buckets in use
	order      *order  // nil if rank 0's order is not needed any more
	status     status  // the words that the ranks exchange in a pass
	fresh      []bool  // by parameter: the next write overwrites
	invalid    []error // by parameter: the error of a pass that may have written a part of the gradient
	absent     []bool  // by parameter: this rank has no gradient; the pending outcome tells whether another has
	shared     []bool  // by parameter of a static graph: some rank has a gradient; nil before that is known
	reports    reports
	scan       *scan // nil without CheckNonFinite
	trace      *profile.Recorder

	attendance Attendance // since Join, according to the known outcomes
	joining    bool       // between Join and Leave
	byActive   bool       // averages are over the ranks that made the pass themselves
	isLeaving  bool       // this shadow pass is this rank's last pass
	left       *LeftError // not nil: no rank makes passes any more

	heedsStop bool           // the engine has called Stopping
	requested syscall.Signal // the signal for which this rank asks all to stop in this pass; 0: none
	stop      syscall.Signal // the signal for which all ranks agreed to stop; 0: none

	scale    float64      // the factor of this pass; 1 outside of passes
	works    []Reduction  // the reductions of this pass in order; a separate status comes before the last bucket
	joined   int          // the compute stream waits for this many of works
	change   GraphChange  // the change of a static graph in this pass
	early    error        // errors of the reducer itself in this pass
	pending  device.Event // the host has the status after this event; nil if the outcome is known
	err      error        // the outcome of the last pass: why the gradients must not be used
	isUnread bool         // err is known, but the program has not asked for it

	reached []bool             // by parameter: scratch memory of Begin
	also    func(profile.Span) // set by Trace
	stats   Stats              // the counts, and Rebuilt
}

// New plans and allocates the buckets for params, which are in order of registration. All ranks call
// it. If their parameters or options differ, every rank gets a [*ModelMismatchError].
func New(ctx context.Context, pg *comm.ProcessGroup, params []Param, opts *Options) (*Reducer, error) {
	if pg == nil {
		return nil, fmt.Errorf("reducer: %w", comm.ErrNoGroup)
	}
	var o Options
	if opts != nil {
		o = *opts
	}
	caps, err := o.caps()
	if err := comm.Agree(ctx, pg, err); err != nil {
		return nil, err
	}
	if err := Verify(ctx, pg, slices.Concat(o.Alike, o.compared(caps), []List{Listed("parameter", params)})...); err != nil {
		return nil, err
	}
	if len(params) == 0 {
		return nil, errors.New("reducer: the model has no parameter that requires a gradient")
	}
	for _, p := range params {
		if !p.DType.IsFloat() {
			return nil, fmt.Errorf("reducer: parameter %v: only floating-point gradients can be averaged", p)
		}
	}
	r := &Reducer{
		pg: pg, params: params, caps: caps, op: comm.Avg, hook: o.Hook, beforeLast: o.BeforeLast, unused: o.Unused, scale: 1,
		fresh: make([]bool, len(params)), invalid: make([]error, len(params)), absent: make([]bool, len(params)), reached: make([]bool, len(params)),
		trace: profile.Of(pg.Device()),
	}
	if o.Prescaled {
		r.op = comm.Sum
	}
	plan := assign(params, reversed(len(params)), caps)
	if err := comm.Agree(ctx, pg, r.allocate(plan, o)); err != nil {
		return nil, err
	}
	r.core = newCore(members(plan), len(params))
	r.core.static, r.core.reorder = o.Unused == UnusedFixed, r.order != nil
	r.freshen()
	return r, nil
}

// allocate allocates the memory of this rank.
func (r *Reducer) allocate(plan []assignment, o Options) (err error) {
	r.reports = newReports(r.pg)
	used := len(r.params) // the number of words for parameters in the status
	if o.Unused == UnusedMissing {
		used = 0
	}
	if r.status, err = newStatus(r.pg.Device(), r.pg.Size(), used); err != nil {
		return err
	}
	l, err := r.lay(plan)
	if err != nil {
		return err
	}
	r.use(l)
	resident, err := r.place()
	if err != nil {
		return err
	}
	if o.Unused != UnusedFound && !resident { // with UnusedFound the order of one pass does not predict that of the next
		if r.order, err = newOrder(r.pg, len(r.params)); err != nil {
			return err
		}
	}
	if o.CheckNonFinite {
		r.scan, err = newScan(r.pg.Device(), len(r.params))
	}
	return err
}

// Grad returns the memory of gradient i. It may change once, when a pass that reduces begins: see the
// package documentation. A caller that uses the contents calls Settle first.
func (r *Reducer) Grad(i int) device.Tensor { return r.grads[i] }

// Settle makes everything that is enqueued on the compute stream afterwards see gradient i as the last
// pass left it. It is needed because Finish may let the stream continue before the reductions end.
func (r *Reducer) Settle(i int) {
	if !r.Pending() {
		return
	}
	n := r.core.home[i] + 1
	if n == len(r.buckets) {
		n = len(r.works)
	}
	r.join(context.Background(), n) // Err returns the error
}

// Flags returns bytes on the device. After a pass, on the compute stream, the gradients must not be
// used if any byte is not zero. (Sums of zeros and ones are never -0.) The memory may change when that
// of the gradients does.
func (r *Reducer) Flags() device.Tensor {
	flags := r.status.flags()
	return device.NewTensor(flags.Buf, device.Uint8, flags.Bytes())
}

// Fresh reports, only once, that the next write of gradient i is the first since Zero and has to
// overwrite.
func (r *Reducer) Fresh(i int) bool {
	r.Settle(i)
	f := r.Zeroed(i)
	r.fresh[i] = false
	return f
}

// Zero makes the next write of gradient i overwrite.
func (r *Reducer) Zero(i int) { r.fresh[i], r.invalid[i], r.absent[i] = true, nil, false }

// Fail reports that a pass failed which was going to write gradient i. The gradient is invalid until
// Zero, with everything that had accumulated. Unless Zero comes first, all ranks skip the next pass
// that reduces. (A pass that reduces and fails zeroes all gradients in Finish.)
func (r *Reducer) Fail(i int, err error) {
	if r.invalid[i] == nil {
		r.invalid[i] = err
	}
}

// GradErr returns why gradient i must not be used: the error given to Fail, or else Err.
func (r *Reducer) GradErr(i int) error {
	if err := r.invalid[i]; err != nil {
		return err
	}
	return r.Err()
}

// accumulatedError returns an error if an accumulated gradient is invalid and must not be reduced.
func (r *Reducer) accumulatedError() error {
	for i, err := range r.invalid {
		if err != nil {
			return fmt.Errorf("reducer: rank %d: parameter %v has accumulated gradients of a pass that failed: %w", r.pg.Rank(), r.params[i], err)
		}
	}
	return nil
}

// Zeroed reports whether there is no gradient i: it was not written since Zero, or since a pass that
// failed. If this rank's last pass did not use the parameter, but another rank may have, Zeroed waits
// for the outcome as Err does.
func (r *Reducer) Zeroed(i int) bool {
	if r.absent[i] {
		r.awaitOutcome()
	}
	return r.fresh[i]
}

// freshen zeroes all gradients.
func (r *Reducer) freshen() {
	for i := range r.fresh {
		r.Zero(i)
	}
}

// Scale returns the factor for the last write of each gradient in this pass: with Prescaled one
// over the number of ranks in a pass that reduces, otherwise 1.
func (r *Reducer) Scale() float64 { return r.scale }

// Begin starts a backward pass. If sync is false, the pass only accumulates; a later pass reduces the
// sum. reached reports which gradients the pass will write. It may be nil with UnusedMissing. If the
// program has not asked for the outcome of the pass before, Begin waits for that outcome, and its error
// becomes this pass's error. After a [*LeftError] nothing is reduced any more; this pass fails with that
// error.
func (r *Reducer) Begin(sync bool, reached func(i int) bool) {
	r.begin(event{kind: begin, sync: sync}, reached)
}

// begin starts a pass. It fills in e.reached.
func (r *Reducer) begin(e event, reached func(i int) bool) {
	r.early, r.err, r.scale, r.change, r.isLeaving = r.unreadError(), nil, 1, GraphChange{Rank: r.pg.Rank()}, false
	if e.shadow { // after the outcome of the last pass, which may have left gradients here
		r.freshen()
	}
	if r.left != nil { // the other ranks would not take part
		r.early, e.sync = r.left, false
	}
	if e.sync && r.order != nil && r.order.sent != nil {
		r.early = errors.Join(r.early, r.rebuild(context.Background())) // bounded by the group's timeout
	}
	if !e.sync {
		r.stats.Accumulated++
	} else {
		r.stats.Passes++
		r.reports.pass++
		if r.op == comm.Sum {
			r.scale = 1 / float64(r.pg.Size())
		}
		if r.scan != nil {
			r.early = errors.Join(r.early, r.scan.begin())
		}
		r.early = errors.Join(r.early, r.status.clear(), r.accumulatedError())
		if !e.shadow {
			e.reached = r.reach(reached)
		}
	}
	r.perform(r.step(e), nil)
}

// Ready reports that gradient i is final on the compute stream at event at. It starts the reductions
// of all buckets that are now complete, and never waits.
func (r *Reducer) Ready(i int, at device.Event) {
	actions, err := r.core.step(event{kind: ready, param: i})
	if err != nil {
		panic(fmt.Errorf("reducer: rank %d: parameter %v: %w", r.pg.Rank(), r.params[i], err))
	}
	if r.scan != nil && r.core.phase == reducing {
		r.early = errors.Join(r.early, r.scan.check(i, r.grads[i]))
		at = r.pg.Device().Compute().Mark()
	}
	r.perform(actions, at)
}

// step passes an event to the core. It panics if the engine made a mistake.
func (r *Reducer) step(e event) []action {
	actions, err := r.core.step(e)
	if err != nil {
		panic(fmt.Errorf("reducer: rank %d: %w", r.pg.Rank(), err))
	}
	return actions
}

// perform carries out the core's actions. It stores errors for Finish and continues, because the other
// ranks wait for the reductions.
func (r *Reducer) perform(actions []action, at device.Event) {
	for _, a := range actions {
		switch a.kind {
		case skipUnused:
			r.early = errors.Join(r.early, r.skipUnused(a.param))
		case noteNewlyUsed:
			r.change.NewlyUsed = append(r.change.NewlyUsed, r.params[a.param].Name)
		case noteNoLongerUsed:
			r.change.NoLongerUsed = append(r.change.NoLongerUsed, r.params[a.param].Name)
		case setShadowFlag:
			r.early = errors.Join(r.early, r.status.setShadow(r.pg.Rank()))
		case askToStop:
			r.early = errors.Join(r.early, r.status.requestStop(r.requested))
		case raiseFlag:
			r.early = errors.Join(r.early, r.status.raise(r.pg.Rank()))
		case launch:
			r.launch(a.bucket, at)
		case sendOrder:
			r.order.send(r.pg, r.core.knownOrder())
		}
	}
}

// launch starts the reduction of a bucket whose gradients are final at event at. Before the last bucket
// it starts the reduction of a separate status and calls Options.BeforeLast.
func (r *Reducer) launch(i int, at device.Event) {
	b, last := &r.buckets[i], i == len(r.buckets)-1
	if last && r.separate {
		r.works = append(r.works, r.pg.With(comm.CallOptions{Name: "status"}).AllReduce(r.status.words, comm.Sum))
	}
	if last && r.beforeLast != nil {
		r.beforeLast()
	}
	if r.timed() {
		at = r.pg.Device().Compute().Record() // an event at the same point, but with a time
	} else if e := headStart(r.pg, b.bytes, last); e != nil {
		at = e
	}
	w := r.start(i, at)
	r.works = append(r.works, w)
	if r.timed() {
		if started, ended := Times(w); started != nil {
			r.record(profile.Span{
				Track: profile.Communication, Name: "AllReduce " + b.name, Begin: started, End: ended,
				Args: []profile.Arg{{Name: "bucket", Value: i}, {Name: "bytes", Value: b.bytes}, {Name: "parameters", Value: len(b.params)}},
			})
		}
	}
}
