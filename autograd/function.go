package autograd

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// Function is a differentiable operation with one result. The operations of this package are
// Functions, and a program can add its own: see [Apply].
//
// A Function value stands for one application: Forward may keep data in it for Backward. After
// Forward and before Backward, the program must not write the operands in place, except those that a
// [Saver] does not save.
type Function interface {
	// Name returns the operation's name in messages.
	Name() string
	// Shape returns the shape of the result for inputs of these shapes. It panics with a
	// [*device.ShapeError] if they do not fit. The result has the type of the first input. in is valid
	// until Shape returns.
	Shape(in []device.Shape) device.Shape
	// Forward enqueues the computation of c.Out from c.In. When it is called, the content of c.Out is
	// undefined.
	Forward(c *Call) error
	// Backward enqueues the computation of the gradient of c.In[i] from g, the gradient of c.Out. It accumulates
	// that gradient into dst as acc says. It must write every element of dst. If acc.Beta is 0, it must not read
	// dst. A pass calls Backward at most once for each input that needs a gradient, in no particular order.
	Backward(c *Call, i int, dst device.Tensor, acc device.Accum, g device.Tensor) error
}

// preparer is a [Function] with work that the gradients of its inputs share.
type preparer interface {
	Function
	// Prepare is called once in each pass, before Backward. It may overwrite g: Backward then gets
	// the overwritten g.
	Prepare(c *Call, g device.Tensor) error
}

// converter is a [Function] that chooses the type of its result.
type converter interface {
	Function
	dtype() device.DType
}

// joint is a [Function] that computes the gradients of several of its first three inputs with one kernel.
type joint interface {
	Function
	// firstJoint returns the first input of the joint: the gradients of this input and of the following ones, up
	// to input 2, are computed together.
	firstJoint() int
	// backwardJoint is Backward for consecutive inputs from firstJoint() to 2. The destination of an
	// input whose gradient is not wanted is the zero Tensor.
	backwardJoint(c *Call, dst [3]device.Tensor, acc [3]device.Accum, g device.Tensor) error
}

// Call is one application of a [Function], as its methods see it. It is valid until the method that received it
// returns.
type Call struct {
	Kernels device.Kernels
	kernels kernels.Kernels // Kernels with the operations that this package calls
	Stream  device.Stream   // the stream for all work
	In      []device.Tensor
	Out     device.Tensor

	// Recorded reports whether a backward pass may come through this application. Only then
	// does Forward have to prepare for Backward.
	Recorded bool
	// Repeated reports whether [Checkpoint] computes this application again. State beside the
	// result, such as running means, was then already updated by the first computation.
	Repeated bool

	// addend is added to the gradient of input 0: see adder.
	addend device.Tensor

	s          *state
	node       *node           // the node of the result; nil if no pass will reach the result
	inBackward bool            // whether Prepare or Backward is called
	scratch    []device.Buffer // the memory that Prepare or Backward allocated
}

// New allocates memory with undefined content. Memory that Prepare or Backward allocates is freed when the
// pass has finished this Function. Memory that Forward allocates is also freed then, unless the pass retains
// the graph. If no backward pass reaches the Function, that memory is freed at the end of the step or [Scope],
// as results are.
func (c *Call) New(dt device.DType, shape ...int) (device.Tensor, error) {
	t, err := c.s.alloc(dt, shape)
	if c.inBackward {
		c.scratch = append(c.scratch, t.Buf)
		return t, err
	}
	if b := c.s.made(t.Buf, err); c.node != nil {
		c.node.saved = append(c.node.saved, b)
	}
	return t, err
}

// needs reports whether the pass computes the gradient of input i.
func (c *Call) needs(i int) bool { return c.node.in[i].node != nil }

// call returns a Call without inputs. The caller gives it back by calling the method called.
func (s *state) call(out *Variable) *Call {
	n := len(s.calls)
	if n == 0 {
		s.calls = append(s.calls, &Call{})
		n++
	}
	c := s.calls[n-1]
	s.calls = s.calls[:n-1]
	c.s, c.kernels, c.Stream, c.Out = s, kernels.Of(s.dev), s.dev.Compute(), out.t
	if s.counter != nil && s.repeats == 0 {
		c.kernels = s.counter
	}
	c.Kernels = c.kernels
	return c
}

// called gives a Call back for reuse, once the Function's method has returned.
func (s *state) called(c *Call) {
	clear(c.In)
	clear(c.scratch)
	*c = Call{In: c.In[:0], scratch: c.scratch[:0]}
	s.calls = append(s.calls, c)
}

// Apply computes fn of its inputs and records it if one of them needs a gradient. There is at least
// one input. All inputs are on one device, and all floating-point inputs have the same type; else
// Apply panics with a [*DeviceError] or a [*device.DTypeError]. If an input could not be computed, or
// fn fails, the result's Err returns the error. If an input is a parameter of a layer, a panic about
// shapes, types or indices names the layer and the parameter.
func Apply(fn Function, in ...*Variable) *Variable {
	s, name := in[0].s, fn.Name()
	defer nameLayer(fn, in)
	shapes, err := operands(name, in)
	out := &Variable{s: s, op: name}
	shape, dt := fn.Shape(shapes), in[0].t.DType
	if c, ok := fn.(converter); ok {
		dt = c.dtype()
	}
	s.advance(name, in)

	n := s.tape(fn, in, out)
	if err == nil && n != nil {
		err = s.saveGradients(n)
	}
	if err == nil {
		out.t, err = s.alloc(dt, shape)
	} else {
		out.t = device.Tensor{DType: dt, Shape: shape}
	}
	out.mem = s.made(out.t.Buf, err)
	if n == nil && s.scope.untaped != nil {
		for _, v := range in {
			s.scope.untaped[out.mem] = append(s.scope.untaped[out.mem], read{input{v, v.mem.version}, name})
		}
	}
	if err != nil {
		return out
	}

	c := s.call(out)
	defer s.called(c)
	s.applied++
	for i, v := range in {
		if n != nil {
			v = n.in[i].Variable
		}
		c.In = append(c.In, v.t)
		err = cmp.Or(err, v.use(s.noGrad == 0))
	}
	c.node, c.Recorded, c.Repeated = n, n != nil, s.repeats > 0
	if err == nil {
		err = fn.Forward(c)
	}
	if err != nil {
		out.mem.err = fmt.Errorf("%s: %w", name, err)
	}
	runtime.KeepAlive(in)
	return out
}

// nameLayer adds names to a panic in fn: the name of fn, the name of the parameter among the inputs, and the name of
// the layer, which is the parameter's name without its last part. For a LinearCrossEntropyLoss it leaves the layer
// out, because the weight may belong to an embedding.
func nameLayer(fn Function, in []*Variable) {
	r := recover()
	if r == nil {
		return
	}
	kernels.NameOperation(r, fn.Name())
	for _, v := range in {
		if i := strings.LastIndexByte(v.name, '.'); i > 0 && !v.grad {
			layer := v.name[:i]
			if _, isLoss := fn.(*linearLoss); isLoss {
				layer = ""
			}
			kernels.NameLayer(r, layer, v.name)
			break
		}
	}
	panic(r)
}

// operands checks the inputs of an operation. It returns their shapes, which are valid until its next call,
// and the error of the first input that could not be computed.
func operands(op string, in []*Variable) (shapes []device.Shape, err error) {
	first := in[0]
	shapes = first.s.shapes[:0]
	for _, v := range in {
		v.alive()
		if v.s != first.s {
			panic(&DeviceError{Op: op, A: first.s.dev.String(), B: v.s.dev.String()})
		}
		if dt := v.t.DType; dt != first.t.DType && dt.IsFloat() {
			panic(&device.DTypeError{Op: op, Got: dt, Want: first.t.DType})
		}
		if err == nil {
			err = v.Err()
		}
		shapes = append(shapes, v.t.Shape)
	}
	first.s.shapes = shapes
	return shapes, err
}

// node is a variable's place in the graph of gradients. The node of a leaf accumulates the gradients
// that arrive for the variable. The node of a result passes them on to the inputs that need one.
type node struct {
	leaf *leaf // nil for a result; a leaf has no fn, in, out, saved and number

	fn       Function
	in       []input
	few      [3]input // the memory of in, unless there are more
	out      *Variable
	saved    []*block // the memory that Forward allocated
	number   uint64   // counts applications
	released bool     // a pass has released fn, in, out and saved
	remakes  bool     // Recompute freed out, and a pass that reads it computes it again

	pass    uint64 // the last pass that reached the node; pending and grad belong to it
	pending int    // the number of gradients that have not arrived yet
	grad    device.Tensor
}

// tape adds an application to the graph. It returns nil if no pass will ever reach it.
func (s *state) tape(fn Function, in []*Variable, out *Variable) *node {
	needed := func(v *Variable) bool { return v.node != nil }
	if s.noGrad > 0 || !slices.ContainsFunc(in, needed) {
		return nil
	}
	s.nodes++
	n := &node{fn: fn, out: out, number: s.nodes}
	n.in = n.few[:0]
	for _, v := range in {
		n.in = append(n.in, input{v, v.mem.version})
	}
	out.node = n
	return n
}

// spend returns the memory that Forward allocated for Backward. The caller frees it, because no other node reads it.
func (n *node) spend() (mem []device.Buffer) {
	for _, b := range n.saved {
		mem = append(mem, b.buf)
		b.buf, b.freed = device.Buffer{}, "when a backward pass had read it"
	}
	n.saved = nil
	return mem
}

// release drops everything that only a backward pass reads.
func (n *node) release() {
	n.fn, n.in, n.few, n.out, n.saved, n.released = nil, nil, [3]input{}, nil, nil, true
}
