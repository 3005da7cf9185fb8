package autograd

import (
	"fmt"
	"runtime"
	"slices"
	"strings"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// Function is a differentiable operation of one result. The operations of
// this package are Functions, and a program can add its own: see [Apply].
//
// One value of a Function stands for one application: it may keep what its
// Forward found out for its Backward. The operands of an application may not be
// written in place before its Backward, but for those that a [Saver] does not save.
type Function interface {
	// Name is what messages call the operation.
	Name() string
	// Shape is the shape of the result for inputs of these shapes. It panics
	// with a [*device.ShapeError] where they do not fit. The result's type is
	// the first input's.
	Shape(in []device.Shape) device.Shape
	// Forward enqueues what computes c.Out, whose content is undefined, from
	// c.In.
	Forward(c *Call) error
	// Backward enqueues what accumulates into dst, by acc, the gradient of
	// c.In[i], given g, that of c.Out. It must write every element of dst,
	// and with acc.Beta 0 read none. Backward is called at most once per
	// pass for each input that needs a gradient, in no particular order.
	Backward(c *Call, i int, dst device.Tensor, acc device.Accum, g device.Tensor) error
}

// Preparer is a [Function] with work that the gradients of its inputs share.
type Preparer interface {
	Function
	// Prepare is called once per pass, before Backward, and may overwrite g:
	// Backward gets what it leaves there.
	Prepare(c *Call, g device.Tensor) error
}

// converter is a [Function] whose result is of a type of its own.
type converter interface {
	Function
	dtype() device.DType
}

// joint is a [Function] of at least three inputs that computes the gradients of the
// second and the third with one kernel, where both need one.
type joint interface {
	Function
	// backwardJoint is Backward for the inputs 1 and 2.
	backwardJoint(c *Call, dst [2]device.Tensor, acc [2]device.Accum, g device.Tensor) error
}

// Call is one application of a [Function], as its methods see it. It is valid
// until the method that it was given to returns.
type Call struct {
	Kernels device.Kernels
	kernels kernels.Kernels // Kernels with the operations that this package calls
	Stream  device.Stream   // what all work is enqueued on
	In      []device.Tensor
	Out     device.Tensor

	// Recorded tells whether a gradient may come back through this
	// application, so that Forward can make ready what Backward will need.
	Recorded bool
	// Repeated tells whether this application repeats one, within [Checkpoint]: what it
	// changes beside its result, such as running means, it has changed already.
	Repeated bool

	// New allocates memory, its content undefined. What Forward allocates
	// lives as long as the result, for Backward to read; what Prepare and
	// Backward allocate lives until the pass is done with this Function.
	New func(dt device.DType, shape ...int) (device.Tensor, error)
}

// call takes a Call, without inputs, which called gives back.
func (s *state) call(out *Variable) *Call {
	c := &Call{}
	if n := len(s.calls); n > 0 {
		c, s.calls = s.calls[n-1], s.calls[:n-1]
	}
	c.kernels, c.Stream, c.Out = kernels.Of(s.dev), s.dev.Compute(), out.t
	c.Kernels = c.kernels
	return c
}

func (s *state) called(c *Call) {
	clear(c.In)
	*c = Call{In: c.In[:0]}
	s.calls = append(s.calls, c)
}

// Apply computes fn of its inputs, of which there is at least one, and records
// it where one of them needs a gradient. The inputs live on one device, and
// those of a floating-point type are all of the same type: else Apply panics
// with a [*DeviceError] or a [*device.DTypeError]. When an input could not be
// computed, or now fn cannot be, the result's Err says so. A panic because of a shape or
// a type names the layer, where an input is a parameter of one.
func Apply(fn Function, in ...*Variable) *Variable {
	defer nameLayer(in)
	s, name := in[0].s, fn.Name()
	shapes, err := operands(name, in)
	out := &Variable{s: s, op: name}
	shape, dt := fn.Shape(shapes), in[0].t.DType
	if c, ok := fn.(converter); ok {
		dt = c.dtype()
	}
	s.advance(name, in)

	n := s.record(fn, in, out)
	if err == nil && n != nil {
		err = s.saveGradients(n)
	}
	if err == nil {
		out.t, err = s.alloc(dt, shape)
	} else {
		out.t = device.Tensor{DType: dt, Shape: shape}
	}
	out.mem = s.made(out.t.Buf, err)
	if err != nil {
		return out
	}

	c := s.call(out)
	defer s.called(c)
	for i, v := range in {
		if n != nil {
			v = n.in[i].Variable
		}
		c.In = append(c.In, v.t)
	}
	c.Recorded, c.Repeated = n != nil, s.repeats > 0
	c.New = func(dt device.DType, shape ...int) (device.Tensor, error) {
		t, err := s.alloc(dt, shape)
		if b := s.made(t.Buf, err); n != nil {
			n.saved = append(n.saved, b)
		}
		return t, err
	}
	if err := fn.Forward(c); err != nil {
		out.mem.err = fmt.Errorf("%s: %w", name, err)
	}
	runtime.KeepAlive(in)
	return out
}

// nameLayer adds to a panic that can name a layer the one whose parameter is among in,
// by the parameter's name without its last part.
func nameLayer(in []*Variable) {
	r := recover()
	if r == nil {
		return
	}
	for _, v := range in {
		if i := strings.LastIndexByte(v.name, '.'); i > 0 && !v.grad {
			kernels.NameLayer(r, v.name[:i], v.name)
			break
		}
	}
	panic(r)
}

// operands checks what every operation needs of its inputs, and returns their
// shapes and the first error that kept one of them from being computed.
func operands(op string, in []*Variable) (shapes []device.Shape, err error) {
	first := in[0]
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
	return shapes, err
}

// node is a variable's place in the graph of gradients: where a gradient that
// arrives for the variable goes. That of a leaf adds it up; that of a result
// passes it on to the inputs that need one.
type node struct {
	leaf *leaf // not nil for a leaf, which has none of the next five

	fn       Function
	in       []input
	out      *Variable
	saved    []*block // what Forward allocated
	number   uint64   // in the order of application
	released bool     // a pass came through: the four above it are gone

	pass    uint64 // the last pass that reached the node; what follows is its
	pending int    // gradients that are still to arrive
	grad    device.Tensor
}

// record puts an application into the graph. It returns nil when no gradient
// will ever come through.
func (s *state) record(fn Function, in []*Variable, out *Variable) *node {
	needed := func(v *Variable) bool { return v.node != nil }
	if s.noGrad > 0 || !slices.ContainsFunc(in, needed) {
		return nil
	}
	s.nodes++
	inputs := make([]input, len(in))
	for i, v := range in {
		inputs[i] = input{v, v.mem.version}
	}
	out.node = &node{fn: fn, in: inputs, out: out, number: s.nodes}
	return out.node
}

// release lets go of what only a backward pass reads.
func (n *node) release() {
	n.fn, n.in, n.out, n.saved, n.released = nil, nil, nil, nil, true
}
