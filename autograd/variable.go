package autograd

import (
	"fmt"
	"math"
	"slices"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/gradsink"
)

// Variable is a handle to a tensor on a device. It is a leaf, which the program made, or the result of
// an operation. Only the goroutine that uses the device may use the Variable.
type Variable struct {
	s    *state
	t    device.Tensor
	mem  *block
	op   string // the operation that computed it; empty for a leaf
	name string
	grad bool          // whether the variable is a leaf's gradient or a view of one; operations on it belong to the step that made the gradient
	sink gradsink.Sink // the owner of a gradient; nil if autograd owns it
	node *node         // its place in the graph; nil if it needs no gradient
	idle *node         // the node that a frozen leaf had before
	// The observers of backward passes that start at this handle or come through it.
	observers []Observer
}

// Scalar returns a float32 leaf of the empty shape.
func Scalar(dev device.Device, v float32) *Variable {
	return copyIn(dev, "Scalar", []float32{v}, device.Shape{})
}

// FromSlice returns a leaf that holds a copy of data: numbers, int64 indices or labels, or a mask of uint8.
// Without a shape it has one axis. FromSlice panics with a [*device.ShapeError] if the shape does not
// have len(data) elements.
func FromSlice[T float32 | float64 | int64 | uint8](dev device.Device, data []T, shape ...int) *Variable {
	return copyIn(dev, "FromSlice", data, shape)
}

// FromBytes returns a leaf of the given type and shape that holds a copy of data, which
// [Variable.Bytes] returned. It panics with a [*device.ShapeError] if the number of bytes does not
// fit.
func FromBytes(dev device.Device, dt device.DType, shape device.Shape, data []byte) *Variable {
	if want := size(dt, shape); want != len(data) {
		panic(&device.ShapeError{Op: fmt.Sprintf("FromBytes of %v%v, in bytes", dt, shape), A: device.Shape{want}, B: device.Shape{len(data)}})
	}
	return newLeaf(dev, dt, shape, func(t device.Tensor) error { return dev.CopyIn(dev.Compute(), t.Buf, data) })
}

// size returns the number of bytes of a tensor. It returns -1 if the shape, which may come from a file,
// is invalid or too large.
func size(dt device.DType, shape device.Shape) int {
	n := dt.Size()
	for _, axis := range shape {
		if axis < 0 || axis > 0 && n > math.MaxInt/axis {
			return -1
		}
		n *= axis
	}
	return n
}

// Zeros returns a leaf of zeros.
func Zeros(dev device.Device, dt device.DType, shape ...int) *Variable {
	return newLeaf(dev, dt, shape, func(t device.Tensor) error {
		return dev.Kernels().Fill(dev.Compute(), t, 0)
	})
}

// FromTensor returns a leaf over t, without a copy. The caller owns the memory and must keep it while
// the variable is in use.
func FromTensor(dev device.Device, t device.Tensor) *Variable {
	s := stateOf(dev)
	return &Variable{s: s, t: t, mem: &block{made: s.number}}
}

func copyIn[T float32 | float64 | int64 | uint8](dev device.Device, op string, data []T, shape device.Shape) *Variable {
	if shape == nil {
		shape = device.Shape{len(data)}
	}
	if shape.Len() != len(data) {
		panic(&device.ShapeError{Op: op, A: shape, B: device.Shape{len(data)}})
	}
	src := device.HostTensor(data, device.Invalid)
	return newLeaf(dev, src.DType, shape, func(t device.Tensor) error {
		return dev.CopyIn(dev.Compute(), t.Buf, src.Buf.Host())
	})
}

// newLeaf returns a leaf with its own memory, which fill fills.
func newLeaf(dev device.Device, dt device.DType, shape []int, fill func(device.Tensor) error) *Variable {
	if slices.ContainsFunc(shape, func(n int) bool { return n < 0 }) {
		panic(fmt.Sprintf("autograd: a variable of shape %v: want no size below 0", shape))
	}
	s := stateOf(dev)
	t, err := s.alloc(dt, slices.Clone(shape))
	v := &Variable{s: s, t: t, mem: &block{buf: t.Buf, err: err, made: s.number}}
	if err == nil {
		s.addToProgram(v.mem)
		v.mem.err = fill(t)
	}
	return v
}

// alias returns another handle to v's memory, without v's graph. A handle to a gradient belongs to the
// step that made the gradient, as v does.
func (v *Variable) alias() *Variable {
	v.mem.shared = true
	return &Variable{s: v.s, t: v.t, mem: v.mem, op: v.op, name: v.name, grad: v.grad, sink: v.sink}
}

// Detach returns a handle to the same memory without v's graph.
func (v *Variable) Detach() *Variable {
	v.alive()
	return v.alias()
}

// Device returns the device that holds v.
func (v *Variable) Device() device.Device { return v.s.dev }

// DType returns the type of v's elements.
func (v *Variable) DType() device.DType { return v.t.DType }

// Shape returns v's shape. The caller must not change it.
func (v *Variable) Shape() device.Shape { return v.t.Shape }

// Tensor returns v's memory. It is valid while v is reachable and not freed. Its buffer may be empty if
// v could not be computed (see [Variable.Err]). Tensor panics with a [*FreedError] if v was freed.
func (v *Variable) Tensor() device.Tensor {
	v.alive()
	if v.mem.source != nil {
		v.mem.source.Read(v.name)
	}
	return v.t
}

// Err returns nil if v was computed. Otherwise it returns the error of v's operation, or of an
// operation that v depends on: the device ran out of memory or failed.
func (v *Variable) Err() error { return v.mem.err }

// Name returns the name that SetName gave v.
func (v *Variable) Name() string { return v.name }

// SetName names v for messages. It returns v.
func (v *Variable) SetName(name string) *Variable {
	v.name = name
	if l := v.leaf(); l != nil {
		l.handle = nil // its name contains v's old name
	}
	return v
}

// String describes v without its elements.
func (v *Variable) String() string { return label(v.op, v.name) + " " + v.t.String() }
