package autograd

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strconv"
	"weak"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/capture"
	"github.com/goddp/goddp/internal/gradsink"
	"github.com/goddp/goddp/internal/kernels"
)

// CaptureOptions are the options of [Capture].
type CaptureOptions struct {
	// Warmup is the number of calls that run step itself before a call is captured, for each combination of
	// input shapes. These calls allocate state and load kernels. 0: 2.
	Warmup int
	// Required makes a call return the error if the step cannot be captured. Otherwise Capture logs that error
	// once and captures nothing more: calls without a matching capture run step itself.
	Required bool
	// Log receives that error; default slog.Default().
	Log *slog.Logger
}

// maxVariants is the number of captures that Capture keeps of a step.
const maxVariants = 16

// maxAttempts is the number of captures in a row that may fail by an error of the step or of the device. A failed
// capture costs as much of the host's time as a step.
const maxAttempts = 8

// Capture returns a function that does the work of step in a fraction of the host time. Its first calls run step.
// Then, on a GPU, it captures the work that step enqueues as a CUDA graph, and each further call launches the
// graph. A call captures again if its inputs have other shapes or types, or if an option that step depends on has
// changed. Captures are kept, so that shapes may alternate. On the CPU no step can be captured.
//
//	step := autograd.Capture(dev, func(in ...*autograd.Variable) (*autograd.Variable, error) {
//		opt.ZeroGrad()
//		loss := nn.MSELoss(model.Forward(in[0]), in[1], nil)
//		if err := loss.Backward(nil); err != nil {
//			return nil, err
//		}
//		return loss, opt.Step()
//	}, nil)
//	for x, y := range batches {
//		opt.SetLR(schedule(n))
//		loss, err := step(x, y)
//		...
//	}
//
// Losses, parameters and errors are the same as those of step, bit for bit. A call also frees the results of
// earlier steps, as a call of step would. Each call uses the current learning rate, step number and positions of
// random numbers. The inputs may be other variables in each call. Their content is copied, unless it is the same
// as in the previous call.
//
// Only what step enqueues on the device runs in each call. Other code in step runs only when step itself
// runs, so a schedule, a counter or a log belongs outside. Within step, nothing may wait for the device
// ([Variable.Item]), copy from the program's memory ([FromSlice]) or depend on values on the device.
// Of the variables that step makes, only the result can be used outside of step. A step that breaks these rules,
// or uses an operation that cannot be captured, runs uncaptured: see [CaptureOptions]. A call within [Scope] or
// [NoGrad], or with an input that requires a gradient, runs step itself too. A replay does not call the Step of an
// optimizer that another module defines.
//
// With a model of package ddp, the reductions are part of the graph. All ranks make the same steps, but a rank may
// capture a step that another does not. If step makes collectives itself, they must be before the optimizer's
// Step. Otherwise ranks could wait for each other: if a rank lacks a gradient, Step returns an error on all ranks.
// A rank that runs step itself then returns from step, but a graph runs to its end and would wait in a collective
// after Step. While a step is captured, the collectives of other goroutines wait. So step must not wait for such a
// goroutine.
//
// The captures share the device memory that a step needs. Each has a copy of its inputs, and keeps the memory of the
// other variables that it reads until the program frees it. A capture is kept until the returned function is
// unreachable, 16 other captures were used since its last use, or a call finds that the gradients have got other memory.
// A call with larger inputs than those of all captures frees these, so that memory is shared by captures of at most its
// size. They are captured again when they are needed. The gradients of Linear's weights are computed on a separate
// stream, which has its own scratch memory. opts may be nil.
func Capture(dev device.Device, step func(in ...*Variable) (*Variable, error), opts *CaptureOptions) func(in ...*Variable) (*Variable, error) {
	s := stateOf(dev)
	c := &captured{s: s, step: step, calls: map[string]int{}, captures: &captures{}}
	runtime.AddCleanup(c, s.drop, c.captures)
	if opts != nil {
		c.CaptureOptions = *opts
	}
	if c.Warmup <= 0 {
		c.Warmup = 2
	}
	if _, ok := dev.(kernels.Capturer); !ok {
		c.Warmup = 0 // so that the first call logs or returns the error
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	return c.call
}

// captured is a step that Capture was given.
type captured struct {
	CaptureOptions
	*captures
	s       *state
	step    func(in ...*Variable) (*Variable, error)
	calls   map[string]int // the number of calls that ran step, by the shapes of the inputs
	failed  int            // the number of captures that failed since one succeeded
	refused error          // why the step cannot be captured
	shapes  []byte         // the shapes of the inputs of the present call
}

// captures holds the captures of one step, the most recently used first.
type captures struct{ variants []*variant }

// drop runs on a goroutine of the garbage collector, which must not call the device.
func (s *state) drop(r *captures) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropped = append(s.dropped, r.variants...)
}

// variant is a capture of a step.
type variant struct {
	*capture.Step
	shapes string
	in     []*Variable     // the inputs of the captured work
	next   []*Variable     // the inputs of the replay in progress
	from   []content       // by input: the content that was last copied to it
	out    *Variable       // its result, or nil
	copied *Variable       // the copy of out that the replay in progress returns
	reads  map[*block]bool // the program's memory that the captured work uses, which stays while the variant does
	// changes is the number of the state's changes. After a further one the captured work may use memory that is gone.
	changes uint64

	operations   map[device.DType]float64 // of one replay; nil if they were not counted when it was captured
	begins, ends bool                     // begins: the captured work began a new step; ends: that step then had a Backward
}

// Close frees the capture and the copies of its inputs.
func (v *variant) Close() error {
	for _, x := range v.in {
		x.Free()
	}
	return v.Step.Close()
}

// content identifies the content of a variable at some time; the zero value identifies none.
type content struct {
	mem     weak.Pointer[block]
	at      uintptr
	version uint64
}

// contentOf returns x's content. It is the zero content if x's memory belongs to a step or to the caller of
// FromTensor, who may overwrite it.
func contentOf(x *Variable) content {
	if x.mem.scope != nil || x.mem.buf.Len() == 0 {
		return content{}
	}
	return content{weak.Make(x.mem), x.t.Buf.Addr(), x.mem.version}
}

// describe appends the types and shapes of variables.
func describe(key []byte, in []*Variable) []byte {
	for _, v := range in {
		key = append(key, byte(v.t.DType))
		for _, n := range v.t.Shape {
			key = append(strconv.AppendInt(key, int64(n), 10), ' ')
		}
	}
	return key
}

// call is one step.
func (c *captured) call(in ...*Variable) (*Variable, error) {
	s := c.s
	switch {
	case s.capturing != nil: // the step is a part of one that is being captured
		return c.step(in...)
	case s.scope != s.step || s.noGrad > 0 || slices.ContainsFunc(in, (*Variable).RequiresGrad):
		if c.Required {
			return nil, errors.New("autograd: a step cannot be captured within Scope or NoGrad, or with an input that requires a gradient")
		}
		return c.step(in...)
	}
	if err := c.closeInvalid(); err != nil {
		return nil, err
	}
	c.shapes = describe(c.shapes[:0], in)
	for i, v := range c.variants {
		if v.shapes == string(c.shapes) && v.Fits() {
			copy(c.variants[1:i+1], c.variants[:i]) // the variant that was used last comes first
			c.variants[0] = v
			return c.replay(v, in)
		}
	}
	if c.refused != nil {
		return c.step(in...)
	}
	if c.calls[string(c.shapes)] < c.Warmup {
		c.calls[string(c.shapes)]++
		return c.step(in...)
	}
	if i := c.largest(); i >= 0 && bytesOf(c.variants[i].in) < bytesOf(in) {
		if err := c.closeAll(); err != nil { // their memory would be too small to share
			return nil, err
		}
	}
	v, err := c.capture(in, string(c.shapes))
	if err != nil {
		if errors.Is(err, device.ErrOutOfMemory) {
			if err := c.closeAll(); err != nil {
				return nil, err
			}
		}
		if errors.As(err, new(*capture.NotYetError)) {
			return c.step(in...)
		}
		if c.failed++; c.failed < maxAttempts && !errors.As(err, new(*capture.RefusedError)) {
			return c.step(in...)
		}
		if c.Required {
			return nil, fmt.Errorf("autograd: capturing a step: %w", err)
		}
		c.refused = err
		c.Log.Warn("autograd: steps run uncaptured", "cause", err)
		return c.step(in...)
	}
	c.failed = 0
	if n := len(c.variants); n == maxVariants {
		old := n - 1
		if old == c.largest() { // the others share its memory
			old--
		}
		v := c.variants[old]
		c.variants = slices.Delete(c.variants, old, old+1)
		if err := v.Close(); err != nil {
			return nil, err
		}
	}
	c.variants = append([]*variant{v}, c.variants...)
	return c.replay(v, in)
}

// closeInvalid closes the captures that nobody can replay any more, which keep memory.
func (c *captured) closeInvalid() (err error) {
	c.variants = slices.DeleteFunc(c.variants, func(v *variant) bool {
		if v.changes == c.s.changes {
			return false
		}
		err = errors.Join(err, v.Close())
		return true
	})
	return err
}

// closeAll closes all captures. Their steps are captured again when they are called.
func (c *captured) closeAll() (err error) {
	for _, v := range c.variants {
		err = errors.Join(err, v.Close())
	}
	c.variants = nil
	return err
}

// largest returns the index of the capture with the largest inputs, or -1 if there is none.
func (c *captured) largest() (at int) {
	at = -1
	for i, v := range c.variants {
		if at < 0 || bytesOf(v.in) > bytesOf(c.variants[at].in) {
			at = i
		}
	}
	return at
}

// bytesOf returns the number of bytes of variables.
func bytesOf(in []*Variable) (n int) {
	for _, v := range in {
		n += v.t.Bytes()
	}
	return n
}

// capture captures the step. It leaves all state unchanged, whether or not the capture succeeds, except that the
// next step may have begun.
func (c *captured) capture(in []*Variable, shapes string) (*variant, error) {
	s := c.s
	if _, ok := s.dev.(kernels.Capturer); !ok {
		return nil, &capture.RefusedError{Reason: fmt.Errorf("the device %v captures no steps", s.dev)}
	}
	if err := s.awaitReaders(); err != nil {
		return nil, err
	}
	v := &variant{shapes: shapes}
	for _, x := range in {
		x.alive()
		input := newLeaf(s.dev, x.t.DType, x.t.Shape, func(device.Tensor) error { return nil })
		if err := input.Err(); err != nil {
			return nil, err
		}
		v.in = append(v.in, input.SetName(x.name))
	}
	if len(in) > 0 && s.opens(in) {
		s.begin("the captured step") // as the step's first operation would; this frees the previous step's memory
	}
	if s.side == nil {
		side, err := s.dev.NewStream(false)
		if err != nil {
			return nil, err
		}
		s.side = side
	}
	var like *capture.Step
	if len(c.variants) > 0 {
		like = c.variants[0].Step
	}
	made, err := capture.Capture(kernels.Unbounded, s.dev, like, func() error {
		r := &stepCapture{Step: capture.Of(s.dev), before: s.stepState, gradients: map[*gradsink.State]bool{}, reads: map[*block]bool{}}
		v.reads = r.reads
		r.After(func(err error) error { // before other functions of After, which may save the generator
			if err == nil {
				s.random.state.Offset += r.drawn
			}
			return nil
		})
		number := s.number
		defer r.end(s)
		if n := s.counter; n != nil {
			before := n.operations
			n.operations = map[device.DType]float64{}
			defer func() { v.operations, n.operations = n.operations, before }()
		}
		defer func() {
			v.begins = s.number > number
			v.ends = v.begins && s.ended
		}()
		step := &scope{}
		s.stepState = stepState{scope: step, step: step, ended: true, random: s.random, capturing: r}
		out, err := c.step(v.in...)
		if err == nil && out != nil {
			err = out.Err()
		}
		if err == nil && out != nil {
			out.alive()
			v.out = out.alias()
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	v.Step, v.from, v.changes = made, make([]content, len(in)), s.changes
	// The copies come after comm's functions, which mark Compute. As nothing was enqueued since the last replay, Mark makes no event.
	made.Before(v.copyInputs)
	made.Launched(func() {
		if v.begins && s.opens(v.next) { // as the first operation of step would: see advance
			s.begin("the captured step")
		}
		if v.out != nil {
			v.copied = s.copyOf(v.out)
		}
	})
	return v, nil
}

// copyInputs enqueues the copies of the inputs of a replay, unless they have the content that was copied last.
func (v *variant) copyInputs() error {
	for i, x := range v.next {
		dev, from := v.in[i].s.dev, contentOf(x)
		if from != (content{}) && from == v.from[i] {
			continue
		}
		v.from[i] = content{}
		if err := dev.Copy(dev.Compute(), v.in[i].t.Buf, x.Tensor().Buf); err != nil {
			return err
		}
		if v.in[i].mem.version == 0 { // the step does not write its input
			v.from[i] = from
		}
	}
	return nil
}

// copyOf returns a copy of the result of a replay, which the next replay overwrites.
func (s *state) copyOf(out *Variable) *Variable {
	v := &Variable{s: s, op: out.op, name: out.name}
	var err error
	if v.t, err = s.alloc(out.t.DType, out.t.Shape); err == nil {
		err = s.dev.Copy(s.dev.Compute(), v.t.Buf, out.t.Buf)
	}
	v.mem = s.made(v.t.Buf, err)
	return v
}

// stepCapture is the state of a step that is being captured.
type stepCapture struct {
	*capture.Step
	before    stepState
	gradients map[*gradsink.State]bool // the states of the gradients that the step uses
	drawn     uint64                   // the number of random numbers that the step draws
	reads     map[*block]bool          // the program's memory that the step uses
}

// touch notes that the step is about to use the leaf's gradient. reads says that the step depends on whether the
// gradient exists.
func (r *stepCapture) touch(l *leaf, reads bool) {
	if r == nil || r.gradients[l.State] {
		return
	}
	state := l.State
	r.gradients[state] = true
	capture.Replay(r.Step, state)
	if reads {
		before := state.Content
		r.Require(func() bool { return state.Content == before && state.Err == nil })
	}
}

// end restores what the captured step has changed on the host.
func (r *stepCapture) end(s *state) {
	s.end(s.step, "when its step was captured")
	first := r.before.random
	r.drawn = s.random.state.Offset - first.state.Offset
	s.stepState = r.before
	r.Require(func() bool {
		first.state.Offset = s.random.state.Offset
		return s.random == first
	})
}

// positionKey is the key of the word that position uses.
type positionKey struct{}

// position returns the position of this rank's next n random numbers. In a captured step it is relative
// to the position at the start of the capture.
func (s *state) position(n int) kernels.Position {
	p := s.random.draw(n)
	if r := s.capturing; r != nil {
		first := r.before.random.state.Offset
		p.From = r.Words(positionKey{}, device.Int64, 1, func(bits []int64) { bits[0] = int64(s.random.state.Offset - first) })
	}
	return p
}

// replay makes one step by launching the captured graph.
func (c *captured) replay(v *variant, in []*Variable) (*Variable, error) {
	s := c.s
	if err := s.awaitReaders(); err != nil {
		return nil, err
	}
	for _, x := range in {
		x.Tensor() // panics if x cannot be read, before the calls of the replay start
		if err := x.Err(); err != nil {
			return nil, err
		}
	}
	v.next = in
	defer func() { v.next = nil }()
	err := v.Replay()
	for dt, n := range v.operations {
		s.counter.operations[dt] += n
	}
	s.ended = s.ended || v.ends
	out := v.copied
	v.copied = nil
	return out, err
}
