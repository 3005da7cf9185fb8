package reducer

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/profile"
)

// The caps of buckets in bytes where Options sets none: a small first one, so
// that communication starts early.
const (
	DefaultFirstBucketCap = 1 << 20
	DefaultBucketCap      = 25 << 20
)

// Options are how a Reducer is made. The zero value is the good default. They
// are the same on every rank.
type Options struct {
	// BucketCapMB is the size, in MiB, at which a bucket is closed; 0: 25, and
	// 1 for the first.
	BucketCapMB float64
	// FirstBucketCapMB is the first bucket's; 0: BucketCapMB, if that is set.
	FirstBucketCapMB float64
	// Prescaled tells that the engine multiplies every gradient by Scale in
	// its last write of a pass, so that the average needs no pass of its own.
	Prescaled bool
	// CheckNonFinite looks for NaN and Inf in the gradients before they are
	// reduced: see [NonFiniteError]. It may differ between ranks.
	CheckNonFinite bool
}

// caps are the buckets' caps in bytes, first to last.
func (o Options) caps() ([]int, error) {
	first, rest := DefaultFirstBucketCap, DefaultBucketCap
	for _, mb := range []float64{o.BucketCapMB, o.FirstBucketCapMB} {
		if mb < 0 || math.IsNaN(mb) || mb > math.MaxInt32 {
			return nil, fmt.Errorf("reducer: a bucket cap of %v MiB", mb)
		}
	}
	if o.BucketCapMB > 0 {
		first, rest = int(o.BucketCapMB*(1<<20)), int(o.BucketCapMB*(1<<20))
	}
	if o.FirstBucketCapMB > 0 {
		first = int(o.FirstBucketCapMB * (1 << 20))
	}
	return []int{first, rest}, nil
}

// Reducer averages one model's gradients over the ranks of a group. It is
// driven by one goroutine, and owns nothing that has to be closed: the
// buckets' memory goes with the last reference to it, a few bytes of the host's
// with the device.
type Reducer struct {
	pg      *comm.ProcessGroup
	params  []Param
	op      comm.ReduceOp
	core    *core
	buckets []bucket
	flags   device.Tensor   // one word per rank, in the last bucket
	seen    device.Buffer   // where the host sees them
	unclean bool            // flags may hold those of a pass that failed
	grads   []device.Tensor // by parameter: views of the buckets
	fresh   []bool          // by parameter: the next write overwrites
	reports reports
	scan    *scan // nil where gradients may be anything
	trace   *profile.Recorder

	scale   float64      // of the pass; 1 outside
	works   []*comm.Work // of the pass: the launched buckets, in order
	early   error        // of the pass: what the reducer itself could not do
	pending device.Event // seen holds the flags then; nil where the outcome is known
	err     error        // the outcome of the last pass: why the gradients must not be used
}

// bucket is a bucket as laid out.
type bucket struct {
	Assignment
	name  string
	flat  device.Tensor // the views, the flags in the last bucket, the padding
	bytes int           // of the gradients alone
}

// New plans and allocates the buckets for params, in their order of
// registration. All ranks call it; a model that differs between them is a
// [*ModelMismatchError] on every one.
func New(ctx context.Context, pg *comm.ProcessGroup, params []Param, opts *Options) (*Reducer, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	caps, err := o.caps()
	if err := comm.Agree(ctx, pg, err); err != nil {
		return nil, err
	}
	if err := Verify(ctx, pg, "bucket cap", []string{fmt.Sprint(caps[0], " bytes"), fmt.Sprint(caps[1], " bytes")}); err != nil {
		return nil, err
	}
	if err := Verify(ctx, pg, "parameter", params); err != nil {
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
		pg: pg, params: params, op: comm.Avg, scale: 1,
		grads: make([]device.Tensor, len(params)), fresh: make([]bool, len(params)),
		trace: profile.Of(pg.Device().Values()),
	}
	if o.Prescaled {
		r.op = comm.Sum
	}
	plan := Assign(params, reversed(len(params)), caps)
	if err := comm.Agree(ctx, pg, r.allocate(ctx, plan, o)); err != nil {
		return nil, err
	}
	members := make([][]int, len(plan))
	for i, a := range plan {
		members[i] = a.Params
	}
	r.core = newCore(members, len(params))
	r.freshen()
	return r, nil
}

// allocate makes what this rank needs of its own.
func (r *Reducer) allocate(ctx context.Context, plan []Assignment, o Options) (err error) {
	if r.reports, err = newReports(ctx, r.pg); err != nil {
		return err
	}
	for i, a := range plan {
		b, err := r.lay(i, a, i == len(plan)-1)
		if err != nil {
			return err
		}
		r.buckets = append(r.buckets, b)
	}
	if o.CheckNonFinite {
		if r.scan, err = newScan(r.pg.Device(), len(r.params)); err != nil {
			return err
		}
	}
	// Now: a driver may wait for the device before it gives such memory, and
	// later a reduction may hang there.
	r.seen, err = r.pg.Device().AllocHost(r.flags.Bytes())
	return err
}

// lay allocates bucket i and points its gradients, and the flags if it is the
// last, into it.
func (r *Reducer) lay(i int, a Assignment, last bool) (bucket, error) {
	b := bucket{Assignment: a, name: fmt.Sprintf("bucket %d", i)}
	dt := r.params[a.Params[0]].DType
	offsets, end := make([]int, len(a.Params)), 0
	for k, p := range a.Params {
		offsets[k] = end
		b.bytes += r.params[p].bytes()
		end += device.AlignUp(r.params[p].bytes())
	}
	ranks, flags := r.pg.Size(), 0
	if last {
		flags = ranks * dt.Size()
	}
	unit := ranks * device.Align
	size := (end + flags + unit - 1) / unit * unit
	buf, err := r.pg.Alloc(size)
	if err != nil {
		return b, fmt.Errorf("reducer: %s of %d parameters: %w", b.name, len(a.Params), err)
	}
	b.flat = device.NewTensor(buf, dt, size/dt.Size())
	if last {
		r.flags = device.NewTensor(buf.Slice(end, flags), dt, ranks)
	}
	for k, p := range a.Params {
		r.grads[p] = device.NewTensor(buf.Slice(offsets[k], r.params[p].bytes()), dt, r.params[p].Shape...)
	}
	return b, nil
}

// Grad is where gradient i lives. It stays there for the Reducer's life.
func (r *Reducer) Grad(i int) device.Tensor { return r.grads[i] }

// Flags are bytes: after a pass, on the compute stream, any that is not zero
// forbids the use of its gradients. Sums of zeros and ones are never -0.
func (r *Reducer) Flags() device.Tensor {
	return device.NewTensor(r.flags.Buf, device.Uint8, r.flags.Bytes())
}

// Fresh tells, once, that the next write of gradient i is the first since Zero
// and must overwrite.
func (r *Reducer) Fresh(i int) bool {
	f := r.fresh[i]
	r.fresh[i] = false
	return f
}

// Zero makes the next write of gradient i a first one.
func (r *Reducer) Zero(i int) { r.fresh[i] = true }

// Zeroed tells whether gradient i holds nothing: it was not written since Zero,
// or since a pass that failed.
func (r *Reducer) Zeroed(i int) bool { return r.fresh[i] }

func (r *Reducer) freshen() {
	for i := range r.fresh {
		r.fresh[i] = true
	}
}

// Scale is the factor for the last write of each gradient in this pass: one
// over the number of ranks in a pass that is reduced by a Prescaled reducer,
// else 1.
func (r *Reducer) Scale() float64 { return r.scale }

// Begin starts a backward pass. Without sync, it only accumulates: nothing is
// reduced, and a later pass reduces the sum. If nobody has asked for the outcome
// of the pass before, Begin does, and makes an error this pass's own.
func (r *Reducer) Begin(sync bool) {
	r.step(event{kind: begin, sync: sync})
	var unasked error
	if r.Pending() {
		unasked = r.Err()
	}
	r.early, r.err, r.scale = unasked, nil, 1
	if sync {
		r.reports.pass++
		if r.op == comm.Sum {
			r.scale = 1 / float64(r.pg.Size())
		}
		if r.scan != nil {
			r.early = errors.Join(r.early, r.scan.begin())
		}
	}
	if r.unclean {
		r.unclean = false
		r.early = errors.Join(r.early, r.fill(r.flags, 0))
	}
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
		case flag:
			r.early = errors.Join(r.early, r.fill(r.flags.Range(r.pg.Rank(), r.pg.Rank()+1), 1))
		case launch:
			b := &r.buckets[a.bucket]
			if r.trace.On() {
				at = r.pg.Device().Compute().Record() // the same point, with a time
			}
			w := r.pg.With(comm.CallOptions{Name: b.name, After: at}).AllReduce(b.flat, r.op)
			r.works = append(r.works, w)
			if r.trace.On() {
				r.trace.Add(profile.Span{
					Track: profile.Communication, Name: "AllReduce " + b.name, Begin: w.Begun(), End: w.Ended(),
					Args: []profile.Arg{{Name: "bucket", Value: a.bucket}, {Name: "bytes", Value: b.bytes}, {Name: "parameters", Value: len(b.Params)}},
				})
			}
		}
	}
}

func (r *Reducer) fill(t device.Tensor, v float64) error {
	d := r.pg.Device()
	return d.Kernels().Fill(d.Compute(), t, v)
}

// Bucket describes one bucket, in the order in which they are reduced.
type Bucket struct {
	Params []string
	Bytes  int // of the gradients
	Cap    int // in bytes
	Padded int // bytes that are reduced
}

// Buckets describes the buckets.
func (r *Reducer) Buckets() []Bucket {
	out := make([]Bucket, len(r.buckets))
	for i, b := range r.buckets {
		out[i] = Bucket{Bytes: b.bytes, Cap: b.Cap, Padded: b.flat.Bytes()}
		for _, p := range b.Params {
			out[i].Params = append(out[i].Params, r.params[p].Name)
		}
	}
	return out
}
