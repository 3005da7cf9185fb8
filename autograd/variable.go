package autograd

import (
	"fmt"
	"math"
	"slices"

	"github.com/goddp/goddp/device"
)

// Variable is a handle to a tensor on a device: a leaf, which the program
// made, or the result of an operation. A Variable is used by the goroutine
// that drives its device.
type Variable struct {
	s    *state
	t    device.Tensor
	mem  *block
	op   string // the operation that made it; empty for a leaf
	name string
	grad bool     // it is a leaf's gradient, or a view of one: an operation on it is part of the step that made it
	sink GradSink // of a gradient: who owns it; nil where autograd does
	node *node    // where its gradient goes; nil when it needs none
	idle *node    // of a leaf that is frozen: its node until then
	// The observers of backward passes that begin here or come through here.
	observers []Observer
}

// Scalar is a float32 leaf of the empty shape.
func Scalar(dev device.Device, v float32) *Variable {
	return copyIn(dev, "Scalar", []float32{v}, device.Shape{})
}

// FromSlice is a leaf that holds a copy of data: numbers, int64 indices, or a mask of
// uint8. Without a shape it has one axis. It panics with a [*device.ShapeError] when data
// is not as long as shape says.
func FromSlice[T float32 | float64 | int64 | uint8](dev device.Device, data []T, shape ...int) *Variable {
	return copyIn(dev, "FromSlice", data, shape)
}

// FromLabels is an int64 leaf of one axis that holds a copy of labels: what
// [CrossEntropyLoss] compares with.
func FromLabels(dev device.Device, labels []int64) *Variable {
	return copyIn(dev, "FromLabels", labels, nil)
}

// FromBytes is a leaf of this type and shape that holds a copy of what
// [Variable.Bytes] read. It panics with a [*device.ShapeError] when these are not as
// many bytes as that takes.
func FromBytes(dev device.Device, dt device.DType, shape device.Shape, data []byte) *Variable {
	if want := size(dt, shape); want != len(data) {
		panic(&device.ShapeError{Op: fmt.Sprintf("FromBytes of %v%v, in bytes", dt, shape), A: device.Shape{want}, B: device.Shape{len(data)}})
	}
	return newLeaf(dev, dt, shape, func(t device.Tensor) error { return dev.CopyIn(dev.Compute(), t.Buf, data) })
}

// size is how many bytes a tensor takes, -1 where the shape, which a file may have
// given, is none, or of more than there are.
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

// Zeros is a leaf of zeros.
func Zeros(dev device.Device, dt device.DType, shape ...int) *Variable {
	return newLeaf(dev, dt, shape, func(t device.Tensor) error {
		return dev.Kernels().Fill(dev.Compute(), t, 0)
	})
}

// FromTensor is a leaf over t, without a copy. The caller owns the memory: it
// stays as it is while the variable is in use.
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

// newLeaf is a leaf in memory of its own, filled by fill.
func newLeaf(dev device.Device, dt device.DType, shape []int, fill func(device.Tensor) error) *Variable {
	s := stateOf(dev)
	t, err := s.alloc(dt, slices.Clone(shape))
	v := &Variable{s: s, t: t, mem: &block{buf: t.Buf, err: err, made: s.number}}
	if err == nil {
		s.addToScope(v.mem)
		v.mem.err = fill(t)
	}
	return v
}

// alias is another handle to v's memory, with none of v's graph. One to a gradient
// is a part of the step that made it, as v is.
func (v *Variable) alias() *Variable {
	return &Variable{s: v.s, t: v.t, mem: v.mem, op: v.op, name: v.name, grad: v.grad, sink: v.sink}
}

// Detach is a handle to the same memory that takes no part in v's graph.
func (v *Variable) Detach() *Variable {
	v.alive()
	return v.alias()
}

// Device is where v lives.
func (v *Variable) Device() device.Device { return v.s.dev }

// DType is the type of v's elements.
func (v *Variable) DType() device.DType { return v.t.DType }

// Shape is v's shape; the caller must not change it.
func (v *Variable) Shape() device.Shape { return v.t.Shape }

// Tensor is v's memory, valid while v is reachable and not freed. Where v
// could not be computed (see [Variable.Err]) its buffer may be empty. Tensor
// panics with a [*FreedError] when v was freed.
func (v *Variable) Tensor() device.Tensor {
	v.alive()
	return v.t
}

// Err is why v could not be computed, nil if it could: the device ran out of
// memory or failed, at v's own operation or at one that v depends on.
func (v *Variable) Err() error { return v.mem.err }

// Name is the name that v was given.
func (v *Variable) Name() string { return v.name }

// SetName gives v a name, for messages. It returns v.
func (v *Variable) SetName(name string) *Variable {
	v.name = name
	if l := v.leaf(); l != nil {
		l.handle = nil // it has a name of the old one's
	}
	return v
}

// String describes v, without its elements.
func (v *Variable) String() string { return label(v.op, v.name) + " " + v.t.String() }
