package buckets

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/gradsink"
	"github.com/goddp/goddp/profile"
)

// Reducer averages the gradients of one model over the ranks of a group. One goroutine must call all its
// methods. A Reducer does not have to be freed: the garbage collector frees the memory of the buckets,
// and a few bytes of other memory are freed with the device.
type Reducer struct {
	pg         *comm.ProcessGroup
	params     []reducer.Param
	caps       []int
	op         comm.ReduceOp
	hook       reducer.Hook
	beforeLast func() // Options.BeforeLast
	unused     Unused
	core       *core
	layout                      // the layout of the buckets in use
	order      *order           // nil if rank 0's order is not needed any more
	status     status           // the words that the ranks sum in each pass that reduces
	states     []gradsink.State // by parameter: what its gradient holds
	shared     []bool           // with UnusedFixed, by parameter: some rank has a gradient; nil until the ranks know this
	reports    reports
	scan       *scan // nil without Options.CheckNonFinite
	trace      *profile.Recorder

	joining   bool // Join was called, and Leave was not called since
	byActive  bool // averages are only over the ranks that do not make a shadow pass
	heedsStop bool // the engine has called Stopping
	wantsEnd  bool // this rank asks all ranks to end their loops
	passState

	captured *captured   // nil unless a step is being captured
	copies   *copyStream // for the status of captured passes; nil before the first one

	reached []bool             // scratch memory for the parameters that a pass will use
	also    func(profile.Span) // the function given to Trace
}

// passState is the state that a pass changes, except for the gradients and their states. When a capture begins, the
// struct is copied, and when it ends, the copy is restored. The copy shares the slices, so a pass must not write
// their elements; it replaces the slices. Only works, to which a pass appends, is cloned.
type passState struct {
	number   uint64              // the number of passes that reduced
	scale    float64             // the result of the method Scale; 1 between passes
	works    []reducer.Reduction // the reductions of this pass in order; a separate status comes before the last bucket
	joined   int                 // the compute stream waits for the first `joined` reductions in works
	change   reducer.GraphChange // how this pass differs from the static graph
	early    error               // this rank's errors before the outcome is known: of the reducer itself, or of an earlier pass
	pending  device.Event        // the event after which the host has the status; nil if the outcome is known
	err      error               // the outcome of the last pass: why the gradients must not be used
	isUnread bool                // err is known, but the program has not asked for it
	isStale  bool                // the status may hold values of an earlier pass

	attendance Attendance         // what is known about which ranks took part in the passes since Join
	isLeaving  bool               // this rank leaves: after its shadow pass no rank may start a pass
	left       *reducer.LeftError // if not nil, a rank has left, and further passes fail with this error

	requested syscall.Signal // the signal that this rank received and proposes in this pass as the reason to stop, or endRequest; 0: none
	stop      syscall.Signal // the signal that all ranks agreed on as the reason to stop; 0: none
	isEnding  bool           // a rank has asked all ranks to end their loops, and the engine has not called Ending since

	waited time.Duration // the time for which the host has waited for outcomes, in all passes

	stats reducer.Stats // the fields of Stats that the method Stats does not compute
}

// New plans and allocates the buckets for the parameters `params`, which are in order of registration. All ranks must
// call New. If their parameters or options differ, every rank gets a [*reducer.ModelMismatchError].
func New(ctx context.Context, pg *comm.ProcessGroup, params []reducer.Param, opts *Options) (*Reducer, error) {
	if pg == nil {
		return nil, fmt.Errorf("reducer: %w", comm.ErrNoGroup)
	}
	o := *cmp.Or(opts, &Options{})
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
		pg: pg, params: params, caps: caps, op: comm.Avg, hook: o.Hook, beforeLast: o.BeforeLast, unused: o.Unused,
		states: make([]gradsink.State, len(params)), reached: make([]bool, len(params)), trace: profile.Of(pg.Device()),
		passState: passState{scale: 1},
	}
	if o.Prescaled {
		r.op = comm.Sum
	}
	plan := assign(params, reversed(len(params)), caps)
	if err := comm.Agree(ctx, pg, r.allocate(plan, o)); err != nil {
		return nil, err
	}
	if h, ok := r.hook.(resident); ok {
		if err := r.place(h); err != nil {
			return nil, err
		}
	}
	if r.reports, err = newReports(ctx, pg); err != nil {
		return nil, err
	}
	r.core = newCore(members(plan), len(params))
	r.core.isStatic, r.core.reorder = o.Unused == UnusedFixed, r.order != nil
	return r, nil
}

// Free frees the memory that only the device's end would free, and drops the buckets, so that the garbage collector can
// free them. No other method may be called afterwards, and the device must have run all work of the Reducer.
func (r *Reducer) Free() {
	r.status.free()
	if r.scan != nil {
		r.scan.free()
	}
	r.status, r.scan, r.layout, r.order, r.works = status{}, nil, layout{}, nil, nil
}

// allocate allocates the status, the buckets and all other memory of the reducer on this rank.
func (r *Reducer) allocate(plan []assignment, o Options) (err error) {
	used := len(r.params) // the number of words for parameters in the status
	if o.Unused == UnusedMissing {
		used = 0
	}
	var refusal device.Buffer
	if r.pg.Size() > 1 { // a single rank commits each step, and knows it in advance: see finishAlone
		refusal = backend.Refusal(r.pg)
	}
	if r.status, err = newStatus(r.pg.Device(), r.pg.Size(), used, refusal); err != nil {
		return err
	}
	l, err := r.lay(plan)
	if err != nil {
		return err
	}
	r.use(l)
	if _, ok := r.hook.(resident); o.Unused != UnusedFound && !ok { // with UnusedFound the next pass may have another order
		if r.order, err = newOrder(r.pg, len(r.params)); err != nil {
			return err
		}
	}
	if o.CheckNonFinite {
		r.scan, err = newScan(r.pg.Device(), len(r.params))
	}
	return err
}

// Grad returns the memory of gradient i. The memory may change once, when a pass that reduces begins:
// see the package documentation. A caller must call Settle before it uses the contents. If this rank's last pass
// did not use the parameter, another rank may have used it, and Grad waits for the outcome as Err does.
func (r *Reducer) Grad(i int) device.Tensor {
	if r.states[i].Content == gradsink.Unknown {
		r.awaitOutcome()
	}
	return r.grads[i]
}

// State returns the state of gradient i, which says what the gradient holds. The engine changes the state when it
// zeroes the gradient, before it writes the gradient, and when a pass that would have written it has failed. If an
// accumulated gradient has an error, all ranks skip the next pass that reduces. After a pass that reduces and fails,
// the reducer zeroes all gradients. If the state is Unknown, call Grad to learn whether there is a gradient.
func (r *Reducer) State(i int) *gradsink.State { return &r.states[i] }

// Settle makes the compute stream wait until the last pass has finished gradient i. Work that is
// enqueued on the stream after Settle sees the final gradient. Settle is needed because Finish may let
// the stream continue before the reductions end.
func (r *Reducer) Settle(i int) {
	if r.capturing(); !r.Pending() {
		return
	}
	n := r.core.home[i] + 1
	if n == len(r.buckets) {
		n = len(r.works)
	}
	r.join(r.pg.Context(), n) // if a reduction failed, Err returns its error
}

// Flags returns the bytes of the ranks' flags on the device. Work on the compute stream after a pass
// must not use the gradients if any byte is not zero. (A flag is a floating-point sum of zeros and ones.
// Such a sum is never -0, so the flag is zero exactly if all its bytes are zero.) When the
// gradients move to other memory, the flags may move too: see Grad.
func (r *Reducer) Flags() device.Tensor {
	s := &r.status
	if s.isGated() {
		n := s.flags.Bytes() + s.refusal.Len()
		return device.NewTensor(s.gate.Slice(0, n), device.Uint8, n)
	}
	return s.flags
}

// accumulatedError returns an error if some accumulated gradient is invalid because a pass that would have written it
// has failed. Such a gradient must not be reduced.
func (r *Reducer) accumulatedError() error {
	for i, s := range r.states {
		if err := s.Err; err != nil {
			return fmt.Errorf("reducer: rank %d: parameter %v has accumulated gradients of a pass that failed: %w", r.pg.Rank(), r.params[i], err)
		}
	}
	return nil
}

// zeroAll discards all gradients. It writes no memory.
func (r *Reducer) zeroAll() { clear(r.states) }

// Scale returns the factor of this pass. The last write of a gradient in the pass must multiply the whole
// gradient, accumulated values included, by this factor. With Options.Prescaled, in a pass that reduces,
// the factor is 1/n, where n is the number of ranks. Otherwise it is 1.
func (r *Reducer) Scale() float64 { return r.scale }

// Begin starts a backward pass. If sync is false, the pass only accumulates; a later pass reduces the
// sum. The parameter `reached` is a function that reports which gradients the pass will write. With
// UnusedMissing it may be nil.
//
// If the program has not asked for the outcome of the previous pass, Begin waits for this outcome. If the
// outcome is an error, the new pass fails with this error. After a [*reducer.LeftError] the new pass reduces
// nothing and fails with the LeftError.
func (r *Reducer) Begin(sync bool, reached func(i int) bool) {
	if rec := r.capturing(); rec != nil {
		if rec.refused = r.beginCaptured(rec); rec.refused != nil {
			return
		}
	}
	r.begin(event{kind: begin, sync: sync}, reached)
}

// begin starts a backward pass or a shadow pass. It sets e.reached from the function reached.
func (r *Reducer) begin(e event, reached func(i int) bool) {
	for k := range r.slots {
		r.slots[k].owner = none
	}
	r.early, r.err, r.scale, r.change, r.isLeaving = r.unreadError(), nil, 1, reducer.GraphChange{Rank: r.pg.Rank()}, false
	if e.shadow { // a shadow pass must add zeros to the sums, not the gradients of earlier passes
		r.zeroAll()
	}
	if r.left != nil { // a LeftError has ended the passes of all ranks, so no other rank would take part in a reduction
		r.early, e.sync = r.left, false
	}
	if e.sync && r.order != nil && r.order.sent != nil {
		r.early = errors.Join(r.early, r.rebuild(r.pg.Context()))
	}
	if !e.sync {
		r.stats.Accumulated++
	} else {
		r.stats.Passes++
		r.number++
		if r.op == comm.Sum {
			r.scale = 1 / float64(r.pg.Size())
		}
		if r.scan != nil {
			r.early = errors.Join(r.early, r.scan.begin())
		}
		r.early = errors.Join(r.early, r.clearStatus(), r.accumulatedError())
		if !e.shadow {
			e.reached = r.reach(reached)
		}
	}
	r.perform(r.step(e), nil)
}

// Ready tells the reducer that gradient i is final once the compute stream has reached the event `at`.
// Ready starts the reductions that can start now: those of complete buckets, in order of index. A bucket
// is not reduced before an earlier bucket, and only Finish reduces the last bucket. Ready never waits.
func (r *Reducer) Ready(i int, at device.Event) {
	if rec := r.captured; rec != nil && rec.refused != nil {
		return
	}
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

// step passes an event to the core. It panics if the event shows that the engine, which drives the reducer,
// has called methods in a wrong order.
func (r *Reducer) step(e event) []action {
	actions, err := r.core.step(e)
	if err != nil {
		panic(fmt.Errorf("reducer: rank %d: %w", r.pg.Rank(), err))
	}
	return actions
}

// perform carries out the core's actions. If an action fails, perform keeps the error for Finish and
// continues, because the other ranks wait for the reductions. The gradients of the buckets to launch are
// final once the compute stream has reached the event `at`. If `at` is nil, they are final after all work
// that is enqueued on the compute stream now.
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

// launch starts the reduction of bucket i. The parameter `at` is as for perform. If bucket i is the last
// bucket, launch first starts the reduction of a separate status and calls Options.BeforeLast.
func (r *Reducer) launch(i int, at device.Event) {
	b, last := &r.buckets[i], i == len(r.buckets)-1
	if r.zeroUnused(i) {
		at = nil
	}
	if last && r.separate {
		r.works = append(r.works, r.pg.With(&comm.CallOptions{Name: "status"}).AllReduce(r.status.words, comm.Sum))
	}
	if last && r.beforeLast != nil {
		r.beforeLast()
	}
	switch {
	case r.captured != nil: // a head start does not help in a graph, and `at` may be an event of another stream
		if at != nil && r.hook != nil { // the hook enqueues work on the compute stream
			r.early = errors.Join(r.early, r.pg.Device().Compute().WaitFor(at))
		}
	case r.timed():
		at = r.pg.Device().Compute().Record() // like `at`, this event comes after all writes of the gradients, and it also has a time
	default:
		if e := (reducer.GradBucket{Group: r.pg, Last: last}).Ready(b.bytes); e != nil {
			at = e
		}
	}
	w := r.start(i, at)
	r.works = append(r.works, w)
	if r.timed() {
		if started, ended := reducer.Times(w); started != nil {
			r.traceSpan(profile.Span{
				Track: profile.Communication, Name: "AllReduce " + b.name, Begin: started, End: ended,
				Args: []profile.Arg{{Name: "bucket", Value: i}, {Name: "bytes", Value: b.bytes}, {Name: "parameters", Value: len(b.params)}},
			})
		}
	}
}
