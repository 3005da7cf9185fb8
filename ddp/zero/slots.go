package zero

import (
	"errors"
	"fmt"
	"slices"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/ddp/internal/buckets"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/capture"
	"github.com/goddp/goddp/internal/gradsink"
	"github.com/goddp/goddp/nn"
)

// slot is memory for the parameters of one bucket at a time, at a fixed address.
type slot struct {
	index  int
	mem    device.Buffer
	holds  *bucket    // the bucket whose parameters it holds when gather is done; nil: none
	gather *comm.Work // nil: the compute stream waits for it
	op     uint64     // the last operation that used the slot
}

// isUsedBy reports whether the operation with the number op reads the slot. No operation has the number 0.
func (s *slot) isUsedBy(op uint64) bool { return s.holds != nil && s.op == op && op != 0 }

// flow gathers the parameters of stage 3 as operations use them. All ranks make the same gathers in the same order,
// because they depend on nothing but the order in which operations use parameters.
type flow struct {
	group     *comm.ProcessGroup // for the gathers alone, so that a rank that lacks a gradient need not keep their order relative to reductions
	slots     []*slot
	tape      tape           // nil before the first pass has ended
	recorded  tape           // the moments since the last pass ended, while tape is nil
	forwards  []*forwardPass // likewise the forward passes
	backward  int            // the index of the backward pass's first moment in recorded
	at        int            // the moments of the tape that have come
	now       *bucket        // the bucket that was used last; nil: none since the last pass
	isUntaped bool           // operations within NoGrad have used buckets
	begins    bool           // no operation of the forward pass has used a bucket yet
	strays    bool           // the step has made other gathers than the tape says
	last      *comm.Work     // the gather that was started last; nil: no gather can be running
	isWhole   bool           // within Model.Whole
	leads     bool           // within Model.OnRank, on the rank whose gathers the others follow
	wholes    int            // the number of calls of Model.Whole
}

// SlotError reports an operation that needs the parameters of two buckets, which have the same slot.
type SlotError struct {
	Rank          int
	First, Second string // a parameter of each bucket
}

func (e *SlotError) Error() string {
	return fmt.Sprintf("zero: rank %d: one operation uses the parameters of the buckets of %q and %q, which are not whole at the same time: set Options.Slots to a larger number",
		e.Rank, e.First, e.Second)
}

// NotWholeError is the panic value for a read or a write of a parameter that is divided among the ranks, outside of
// an operation.
type NotWholeError struct {
	Rank  int
	Param string
}

func (e *NotWholeError) Error() string {
	return fmt.Sprintf("zero: rank %d: %s is divided among the ranks: read it within OnRank of the model, or use it within Whole, on all ranks", e.Rank, e.Param)
}

// allocateSlots gives each bucket a slot: its own if the bucket is large, else that of every s.slots-th bucket. Frozen
// parameters have slots of their own, so that a few adapters are not gathered again for each layer of their base.
func (s *shards) allocateSlots() error {
	f := &s.flow
	f.slots = nil
	var size []int              // by slot
	sharing := map[bool][]int{} // the slots that frozen and other buckets share
	shared := map[bool]int{}    // the number of these buckets
	for _, b := range s.buckets {
		i, bytes, unpadded := len(size), b.flat.Len()*b.flat.DType.Size(), 0
		for _, p := range b.params {
			unpadded += p.Shape().Len() * p.DType().Size()
		}
		if unpadded <= s.largest {
			n := shared[b.frozen]
			if n < s.slots {
				sharing[b.frozen] = append(sharing[b.frozen], i)
			}
			i = sharing[b.frozen][n%s.slots]
			shared[b.frozen]++
		}
		if i == len(size) {
			size = append(size, 0)
			f.slots = append(f.slots, &slot{index: i})
		}
		size[i] = max(size[i], bytes)
		b.slot = f.slots[i]
	}
	for i, n := range size {
		buf, err := s.pg.Alloc(n)
		if err != nil {
			return fmt.Errorf("a slot for parameters: %w", err)
		}
		f.slots[i].mem = buf
	}
	return nil
}

// openFlow makes the group for the gathers.
func (s *shards) openFlow() (err error) {
	f := &s.flow
	if f.group != nil {
		f.group.Close() // it has failed with the ranks before
	}
	f.group, err = s.pg.Split(s.pg.Context(), 0, s.rank)
	f.tape, f.recorded, f.forwards, f.last = nil, nil, nil, nil
	f.restart()
	return err
}

// useInSlot makes the compute stream wait until the slot of b holds its parameters, for an operation with the number op.
// isTaped says that the operation is not within NoGrad.
func (s *shards) useInSlot(b *bucket, op uint64, isTaped bool) error {
	f := &s.flow
	r := capture.Of(s.pg.Device())
	if r != nil {
		s.capture(r)
	}
	if f.isWhole {
		return nil
	}
	if r != nil && f.leads {
		return r.Refuse("within OnRank the other ranks follow each gather")
	}
	isTaped = isTaped && !f.leads
	if r != nil && f.tape == nil {
		return r.NotYet("no pass has shown the order in which parameters are used")
	}
	if b != f.now || isTaped && f.isUntaped {
		if err := s.turnTo(b, op, isTaped); err != nil {
			if r == nil { // else nothing runs
				s.pg.Abort(err)
			}
			return fmt.Errorf("gathering parameters: %w", err)
		}
	}
	b.slot.op = op
	if n := len(f.recorded); n > 0 && isTaped {
		f.recorded[n-1].last = op
	}
	return nil
}

// BeginForward is called before a forward pass of the model. An evaluation begins and ends with empty slots. So all ranks
// make the same gathers, also if some of them replay a captured one.
func (s *shards) BeginForward() {
	f := &s.flow
	f.begins, f.now = true, nil
	if f.tape == nil {
		f.forwards = append(f.forwards, &forwardPass{from: len(f.recorded)})
	}
}

// EndForward is called after a forward pass of the model.
func (s *shards) EndForward() {
	if s.flow.isUntaped {
		s.flow.restart()
	}
}

// Observe makes the forward pass that began last an observer of y, while the tape is recorded.
func (s *shards) Observe(y *autograd.Variable) *autograd.Variable {
	f := &s.flow
	if f.tape != nil || len(f.forwards) == 0 {
		return y
	}
	return autograd.Observe(y, f.forwards[len(f.forwards)-1])
}

// forwardPass is a forward pass whose moments were recorded from an index on.
type forwardPass struct {
	from      int
	isReached bool // a backward pass comes through it
}

func (p *forwardPass) BeginBackward(func(*autograd.Variable) bool) { p.isReached = true }
func (p *forwardPass) EndBackward(error) error                     { return nil }

// record returns the recorded moments without those of forward passes through which no backward pass came, such as
// evaluations in grad mode.
func (f *flow) record() tape {
	to := f.backward
	for _, p := range slices.Backward(f.forwards) {
		if !p.isReached {
			f.recorded = slices.Delete(f.recorded, p.from, to)
		}
		to = p.from
	}
	return f.recorded
}

// turnTo gathers the parameters of b, unless its slot holds them, and those that the tape says to gather now.
func (s *shards) turnTo(b *bucket, op uint64, isTaped bool) error {
	f := &s.flow
	if isTaped && f.isUntaped || !isTaped && f.begins {
		f.restart()
	}
	f.now, f.isUntaped, f.begins = b, !isTaped, false
	follows := isTaped && f.tape != nil // the tape
	if follows {
		if next := f.tape.next(f.at, b.index); next >= 0 { // not the next moment if this pass leaves out operations
			if err := s.play(next, op); err != nil {
				return err
			}
		}
	} else if isTaped {
		f.recorded = append(f.recorded, moment{bucket: b.index, op: op})
	}
	if b.slot.holds != b {
		if err := s.fill(b, op); err != nil {
			return err
		}
		if f.strays = f.strays || follows; !follows {
			s.fillNeighbor(b, op)
		}
	}
	w := b.slot.gather
	b.slot.gather = nil
	if w == nil {
		return nil
	}
	return w.Wait(s.pg.Context())
}

// fillNeighbor starts the gather of the bucket that is used after b in a forward pass, unless its slot is in use.
func (s *shards) fillNeighbor(b *bucket, op uint64) {
	if b.index == 0 {
		return
	}
	if next := s.buckets[b.index-1]; next.slot != b.slot && next.slot.holds != next && next.slot.op != op {
		s.fill(next, op) // does not fail, because the operation does not use the slot, unless the group has failed
	}
}

// play starts the gathers of the tape's moments up to the given one. It leaves out those into slots that the present
// operation uses: after a forward pass without a backward pass, operations do not come when the tape says.
func (s *shards) play(to int, op uint64) error {
	f := &s.flow
	for ; f.at <= to; f.at++ {
		for _, i := range f.tape[f.at].gathers {
			b := s.buckets[i]
			if b.slot.isUsedBy(op) {
				f.strays = true
				continue
			}
			if err := s.fill(b, op); err != nil {
				return err
			}
		}
	}
	return nil
}

// fill starts the gather of b into its slot. The gather begins on the device after all operations that are enqueued so
// far, because they may read the slot's old parameters. op is the number of the operation that needs b.
func (s *shards) fill(b *bucket, op uint64) error {
	f, to := &s.flow, b.slot
	if to.isUsedBy(op) {
		return &SlotError{s.rank, to.holds.params[0].Name(), b.params[0].Name()}
	}
	if f.leads {
		if err := s.tell(b.index); err != nil {
			return err
		}
	}
	to.holds = b
	to.gather = f.group.With(&comm.CallOptions{Name: b.name + " of parameters"}).AllGather(b.flat, b.shard)
	f.last = to.gather
	s.traceGather(b, to.gather)
	return nil
}

// restart begins the tape anew, with slots that hold nothing.
func (f *flow) restart() {
	for _, to := range f.slots {
		to.holds, to.gather = nil, nil
	}
	f.at, f.now, f.isUntaped, f.strays = 0, nil, false, false
}

// endPass ends the gathers of a step. err is the error of the backward pass. After an error this rank starts the gathers
// that the other ranks expect.
func (s *shards) endPass(err error) {
	f := &s.flow
	switch {
	case err != nil && f.tape == nil && capture.Of(s.pg.Device()) == nil:
		s.pg.Abort(fmt.Errorf("zero: the first backward pass failed on rank %d: %w", s.rank, err))
	case err != nil && f.strays:
		s.pg.Abort(fmt.Errorf("zero: the backward pass failed on rank %d, after gathers in another order than that of the first step: %w", s.rank, err))
	case err != nil:
		s.play(len(f.tape)-1, 0) // cannot fail: no operation uses a slot
	case f.tape == nil && len(f.recorded) > 0:
		f.tape = f.record()
		f.recorded, f.forwards = nil, nil
		order := buckets.List{What: "use of parameters"}
		for _, m := range f.tape {
			order.Items = append(order.Items, s.buckets[m.bucket].name)
		}
		if err := buckets.Verify(s.pg.Context(), s.pg, order); err != nil {
			s.pg.Abort(err)
		}
		f.tape.plan(func(i int) int { return s.buckets[i].slot.index })
	}
	f.restart()
}

// shadow starts the gathers of a shadow pass, which has no forward pass, before its first reduction.
func (s *shards) shadow(b reducer.GradBucket) {
	if s.inSlots() && b.Index == 0 && !s.isObserved {
		s.endPass(errShadow)
	}
	s.isObserved = s.isObserved && !b.Last
}

// errShadow is why a shadow pass has no gathers of its own.
var errShadow = errors.New("it had no inputs before other ranks have shown the order in which parameters are used")

// settle makes the compute stream wait for all gathers in slots, and begins the tape anew.
func (s *shards) settle() error {
	w := s.flow.last
	s.flow.last = nil
	s.flow.restart()
	if w == nil {
		return nil
	}
	return w.Wait(s.pg.Context())
}

// captureFlow is called when a step that is being captured first uses a parameter. Each replay of the step begins the tape
// anew. A step that was captured within a call of Whole is replayed in that call only, because its kernels read memory that
// the call frees. A step that was captured outside is replayed outside only, because it gathers on all ranks.
func (s *shards) captureFlow(r *capture.Step) {
	f := &s.flow
	isWhole, wholes := f.isWhole, f.wholes
	r.Require(func() bool { return f.isWhole == isWhole && (!isWhole || f.wholes == wholes) && !f.leads })
	last := f.last
	f.restart()
	r.AtEnd(func() {
		if err := s.settle(); err != nil {
			r.Refuse("the gathers of parameters: %w", err)
		}
		f.last = last
	})
}

// partSource is the gradsink.Source of this rank's parts: a program that uses them may write them.
type partSource struct{ s *shards }

func (p partSource) Use(uint64, bool) error { return p.s.settle() }
func (p partSource) Read(string)            { p.s.settle() } // the group of a failed gather is aborted

// setParts tells the parameters which part of them this rank has, or that they are whole.
func (s *shards) setParts(areDivided bool) {
	for _, p := range slices.Concat(s.parts, s.frozen) {
		var part *nn.Buffer
		if areDivided {
			part = nn.NewBuffer(p.Name(), p.local.Var()).Divided(nn.Span{Whole: p.Shape(), Lo: p.lo, Hi: p.hi})
		}
		p.SetPart(part)
	}
}

// Whole calls f with all parameters whole on all ranks, so that f may read and write them on each rank by itself, for
// example to evaluate the model on one rank or to load weights. In stages 1 and 2 they always are. All ranks call Whole;
// the parameters must be equal on all ranks when f returns. Meanwhile the parameters have memory of their own, as much
// as in stage 1; views that f makes are valid until it returns, and views from before do not see that memory. f must not run
// a backward pass.
func (m *Model) Whole(f func() error) error {
	s := m.shards
	if len(s.flow.slots) == 0 || s.flow.isWhole {
		return f()
	}
	dev := s.pg.Device()
	bufs := make([]device.Buffer, len(s.buckets))
	defer func() {
		for _, buf := range bufs {
			if buf.Len() > 0 {
				dev.Free(buf)
			}
		}
	}()
	err := s.settle()
	for i, b := range s.buckets {
		if err == nil {
			bufs[i], err = dev.Alloc(b.flat.Bytes())
		}
	}
	if err := comm.Agree(s.pg.Context(), s.pg, err); err != nil {
		return fmt.Errorf("zero: memory for whole parameters: %w", err)
	}
	defer func() {
		s.flow.isWhole = false
		s.setParts(true)
		for _, b := range s.buckets {
			b.rebind(b.flat)
		}
	}()
	for i, b := range s.buckets {
		whole := device.NewTensor(bufs[i], b.flat.DType, b.flat.Len())
		if err := s.flow.group.With(&comm.CallOptions{Name: b.name + " of parameters"}).AllGather(whole, b.shard).Wait(s.pg.Context()); err != nil {
			s.pg.Abort(err)
			return fmt.Errorf("zero: gathering parameters: %w", err)
		}
		b.rebind(whole)
	}
	s.flow.isWhole = true
	s.flow.wholes++
	s.setParts(false)
	err = f()
	for i, b := range s.buckets { // f may have written the parameters
		whole := device.NewTensor(bufs[i], b.flat.DType, b.flat.Len())
		if e := dev.Copy(dev.Compute(), b.shard.Buf, s.shard(whole, s.rank).Buf); e != nil && err == nil {
			err = fmt.Errorf("zero: copying parameters: %w", e)
		}
	}
	return err
}

// Stats returns the Stats of package ddp. Held also counts the memory of parameters.
func (m *Model) Stats() ddp.Stats {
	s := m.Model.Stats()
	for _, to := range m.shards.flow.slots {
		s.Held += int64(to.mem.Len())
	}
	for _, b := range m.shards.buckets {
		if s.Held += int64(b.sum.Bytes() + b.copy.Bytes()); b.slot != nil {
			s.Held += int64(b.shard.Bytes())
		} else {
			s.Held += int64(b.flat.Bytes())
		}
	}
	return s
}

// rebind makes the bucket's parameters views of flat.
func (b *bucket) rebind(flat device.Tensor) {
	for k, p := range b.params {
		gradsink.Rebind(p.Var(), flat.Range(b.at[k], b.at[k]+p.Shape().Len()))
	}
}
