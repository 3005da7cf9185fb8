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

// Reducer averages one model's gradients over the ranks of a group. It is
// driven by one goroutine, and owns nothing that has to be closed: the
// buckets' memory goes with the last reference to it, a few bytes of the host's
// with the device.
type Reducer struct {
	pg      *comm.ProcessGroup
	params  []Param
	caps    []int
	op      comm.ReduceOp
	hook    Hook
	ahead   func() // Options.BeforeLast
	unused  Unused
	core    *core
	layout          // of the buckets in use
	order   *order  // nil once the buckets follow it, or where they never will
	status  status  // what the ranks tell each other in a pass
	fresh   []bool  // by parameter: the next write overwrites
	spoilt  []error // by parameter: of a pass that may have written a part of the gradient
	absent  []bool  // by parameter: fresh here, and the pending outcome tells whether elsewhere too
	shared  []bool  // by parameter, of a static graph: some rank has a gradient; nil before that is known
	reports reports
	scan    *scan // nil where gradients may be anything
	trace   *profile.Recorder

	attendance Attendance // since Join, by the outcomes that are known
	joining    bool       // between Join and Leave
	byActive   bool       // averages are over the ranks that made the pass
	leaving    bool       // this rank's last pass: a shadow
	left       *LeftError // nobody makes passes any more

	heedsStop bool           // the engine asks whether the ranks stop
	asked     syscall.Signal // of the pass: what this rank asks all to stop for; 0: nothing
	stop      syscall.Signal // what all ranks agreed to stop for; 0: nothing

	scale   float64      // of the pass; 1 outside
	works   []Reduction  // of the pass: the launched buckets, in order, and a status that is apart before the last
	joined  int          // of these: what the compute stream waits for
	change  GraphChange  // of the pass
	early   error        // of the pass: what the reducer itself could not do
	pending device.Event // the host sees the status then; nil where the outcome is known
	err     error        // the outcome of the last pass: why the gradients must not be used
	untold  bool         // nobody has asked for err, although it is known

	reached []bool             // by parameter, for Begin
	also    func(profile.Span) // see Trace
	stats   Stats              // the counts, and Rebuilt
}

// New plans and allocates the buckets for params, in their order of
// registration. All ranks call it; a model that differs between them is a
// [*ModelMismatchError] on every one.
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
	if err := Verify(ctx, pg, slices.Concat(o.Alike, o.alike(caps), []List{Listed("parameter", params)})...); err != nil {
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
		pg: pg, params: params, caps: caps, op: comm.Avg, hook: o.Hook, ahead: o.BeforeLast, unused: o.Unused, scale: 1,
		fresh: make([]bool, len(params)), spoilt: make([]error, len(params)), absent: make([]bool, len(params)), reached: make([]bool, len(params)),
		trace: profile.Of(pg.Device()),
	}
	if o.Prescaled {
		r.op = comm.Sum
	}
	plan := Assign(params, reversed(len(params)), caps)
	if err := comm.Agree(ctx, pg, r.allocate(plan, o)); err != nil {
		return nil, err
	}
	r.core = newCore(members(plan), len(params))
	r.core.static, r.core.reorder = o.Unused == UnusedFixed, r.order != nil
	r.freshen()
	return r, nil
}

// allocate makes what this rank needs of its own.
func (r *Reducer) allocate(plan []Assignment, o Options) (err error) {
	r.reports = newReports(r.pg)
	told := len(r.params)
	if o.Unused == UnusedMissing {
		told = 0
	}
	if r.status, err = newStatus(r.pg.Device(), r.pg.Size(), told); err != nil {
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
	if o.Unused != UnusedFound && !resident { // where unused ones are found, one pass's order says little of the next one's
		if r.order, err = newOrder(r.pg, len(r.params)); err != nil {
			return err
		}
	}
	if o.CheckNonFinite {
		r.scan, err = newScan(r.pg.Device(), len(r.params))
	}
	return err
}

// Grad is where gradient i lives. It moves once at most, where a pass that
// reduces begins: see the package documentation. Who uses what is there calls
// Settle first.
func (r *Reducer) Grad(i int) device.Tensor { return r.grads[i] }

// Settle has what the compute stream is given from now on see gradient i as the
// last pass left it: Finish may leave the stream to go on before the reductions
// are over.
func (r *Reducer) Settle(i int) {
	if !r.Pending() {
		return
	}
	n := r.core.home[i] + 1
	if n == len(r.buckets) {
		n = len(r.works)
	}
	r.join(context.Background(), n) // what fails there fails in Err
}

// Flags are bytes: after a pass, on the compute stream, any that is not zero
// forbids the use of its gradients. Sums of zeros and ones are never -0. They
// move as gradients do.
func (r *Reducer) Flags() device.Tensor {
	flags := r.status.flags()
	return device.NewTensor(flags.Buf, device.Uint8, flags.Bytes())
}

// Fresh tells, once, that the next write of gradient i is the first since Zero
// and must overwrite.
func (r *Reducer) Fresh(i int) bool {
	r.Settle(i)
	f := r.Zeroed(i)
	r.fresh[i] = false
	return f
}

// Zero makes the next write of gradient i a first one.
func (r *Reducer) Zero(i int) { r.fresh[i], r.spoilt[i], r.absent[i] = true, nil, false }

// Fail says that a pass which was to write gradient i failed, so that it is undefined,
// with what earlier passes accumulated there, until Zero. Where that does not come
// first, the next pass that reduces is skipped on every rank: one that reduces, and
// fails, zeroes all gradients as it finishes.
func (r *Reducer) Fail(i int, err error) {
	if r.spoilt[i] == nil {
		r.spoilt[i] = err
	}
}

// GradErr is why gradient i must not be used: what Fail was given, else Err.
func (r *Reducer) GradErr(i int) error {
	if err := r.spoilt[i]; err != nil {
		return err
	}
	return r.Err()
}

// accumulated is why what accumulated so far must not be reduced.
func (r *Reducer) accumulated() error {
	for i, err := range r.spoilt {
		if err != nil {
			return fmt.Errorf("reducer: rank %d: parameter %v accumulated in a pass that failed: %w", r.pg.Rank(), r.params[i], err)
		}
	}
	return nil
}

// Zeroed tells whether gradient i holds nothing: it was not written since Zero,
// or since a pass that failed. Where only this rank's last pass did not use it,
// it waits for the outcome, as Err does, which says whether others did.
func (r *Reducer) Zeroed(i int) bool {
	if r.absent[i] {
		r.look()
	}
	return r.fresh[i]
}

func (r *Reducer) freshen() {
	for i := range r.fresh {
		r.Zero(i)
	}
}

// Scale is the factor for the last write of each gradient in this pass: one
// over the number of ranks in a pass that is reduced by a Prescaled reducer,
// else 1.
func (r *Reducer) Scale() float64 { return r.scale }

// Begin starts a backward pass. Without sync, it only accumulates: nothing is
// reduced, and a later pass reduces the sum. reached tells which gradients the
// pass will write; it may be nil unless unused ones are found. If nobody has
// asked for the outcome of the pass before, Begin does, and makes an error this
// pass's own. Behind a [*LeftError] nothing is reduced any more: that is then the
// pass's error.
func (r *Reducer) Begin(sync bool, reached func(i int) bool) {
	r.begin(event{kind: begin, sync: sync}, reached)
}

// begin starts a pass; of e, it fills in what the pass reaches.
func (r *Reducer) begin(e event, reached func(i int) bool) {
	r.early, r.err, r.scale, r.change, r.leaving = r.unasked(), nil, 1, GraphChange{Rank: r.pg.Rank()}, false
	if e.shadow { // behind the last pass's outcome, which may leave gradients here
		r.freshen()
	}
	if r.left != nil { // nobody would take part
		r.early, e.sync = r.left, false
	}
	if e.sync && r.order != nil && r.order.sent != nil {
		r.early = errors.Join(r.early, r.rebuild(context.Background())) // its calls have deadlines of their own
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
		r.early = errors.Join(r.early, r.status.clean(), r.accumulated())
		if !e.shadow {
			e.reached = r.reach(reached)
		}
	}
	r.perform(r.step(e), nil)
}

// Ready tells that gradient i is final, on the compute stream at event at. It
// starts the reductions of all buckets that are complete now, and never waits.
func (r *Reducer) Ready(i int, at device.Event) {
	actions, err := r.core.step(event{kind: ready, param: i})
	if err != nil {
		panic(fmt.Errorf("reducer: rank %d: parameter %v: %w", r.pg.Rank(), r.params[i], err))
	}
	if r.scan != nil && r.core.phase == reducing {
		r.early = errors.Join(r.early, r.scan.look(i, r.grads[i]))
		at = r.pg.Device().Compute().Mark()
	}
	r.perform(actions, at)
}

// step tells the core an event; its error is the engine's mistake.
func (r *Reducer) step(e event) []action {
	actions, err := r.core.step(e)
	if err != nil {
		panic(fmt.Errorf("reducer: rank %d: %w", r.pg.Rank(), err))
	}
	return actions
}

// perform carries out the core's actions. A failure is kept for Finish: the
// reductions that can be started are, for the other ranks wait for them.
func (r *Reducer) perform(actions []action, at device.Event) {
	for _, a := range actions {
		switch a.kind {
		case spare:
			r.early = errors.Join(r.early, r.spare(a.param))
		case appear:
			r.change.Appear = append(r.change.Appear, r.params[a.param].Name)
		case vanish:
			r.change.Vanish = append(r.change.Vanish, r.params[a.param].Name)
		case excuse:
			r.early = errors.Join(r.early, r.status.excuse(r.pg.Rank()))
		case halt:
			r.early = errors.Join(r.early, r.status.requestStop(r.asked))
		case flag:
			r.early = errors.Join(r.early, r.status.raise(r.pg.Rank()))
		case launch:
			r.launch(a.bucket, at)
		case tell:
			r.order.send(r.pg, r.core.known())
		}
	}
}

// launch starts the reduction of a bucket whose gradients are final at an event,
// and before the last one that of a status that is apart, and what Options say.
func (r *Reducer) launch(i int, at device.Event) {
	b, last := &r.buckets[i], i == len(r.buckets)-1
	if last && r.apart {
		r.works = append(r.works, r.pg.With(comm.CallOptions{Name: "status"}).AllReduce(r.status.words, comm.Sum))
	}
	if last && r.ahead != nil {
		r.ahead()
	}
	if r.timed() {
		at = r.pg.Device().Compute().Record() // the same point, with a time
	} else if e := headStart(r.pg, b.bytes, last); e != nil {
		at = e
	}
	w := r.start(i, at)
	r.works = append(r.works, w)
	if r.timed() {
		if begun, ended := Times(w); begun != nil {
			r.record(profile.Span{
				Track: profile.Communication, Name: "AllReduce " + b.name, Begin: begun, End: ended,
				Args: []profile.Arg{{Name: "bucket", Value: i}, {Name: "bytes", Value: b.bytes}, {Name: "parameters", Value: len(b.Params)}},
			})
		}
	}
}
