package ddpgorgonia

import (
	"fmt"
	"runtime"
	"unsafe"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/ddp/internal/buckets"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
)

// learnable is one parameter: Gorgonia's node and this project's parameter, which share memory.
type learnable struct {
	*nn.Parameter         // in the memory of node's value
	node          *G.Node // the program's node
	use           *G.Node // the node that the graph uses instead of node; nil before Model.Use

	value  uintptr       // the address of the variable's memory, and of node's value
	grad   G.Value       // a view of a bucket
	bucket device.Buffer // the memory of grad
	held   []any         // the owners of the memory of scalar views
}

func newLearnable(dev device.Device, n *G.Node) (*learnable, error) {
	var v *autograd.Variable
	switch x := n.Value().(type) {
	case *tensor.Dense:
		if dt := x.Dtype(); dt != tensor.Float32 && dt != tensor.Float64 {
			return nil, fmt.Errorf("learnable %q is of type %v, want float32 or float64", n.Name(), dt)
		}
		v = FromDense(dev, x)
	case *G.F32:
		v = autograd.FromTensor(dev, device.HostTensor(unsafe.Slice((*float32)(x), 1), device.Float32).Reshape())
	case *G.F64:
		v = autograd.FromTensor(dev, device.HostTensor(unsafe.Slice((*float64)(x), 1), device.Float64).Reshape())
	default:
		return nil, fmt.Errorf("learnable %q has a value of type %T, want a *tensor.Dense, a *gorgonia.F32 or a *gorgonia.F64", n.Name(), x)
	}
	return &learnable{Parameter: nn.NewParameter(n.Name(), v), node: n, value: v.Tensor().Buf.Addr()}, nil
}

// follow sets the node's value to the variable's memory if an optimizer has moved the variable.
func (l *learnable) follow() error {
	t := l.Var().Tensor()
	if t.Buf.Addr() == l.value {
		return nil
	}
	l.value = t.Buf.Addr()
	return G.Let(l.node, l.viewOf(t))
}

// view returns the gradient as a Gorgonia value that shares t's memory. It returns the same value
// until the buckets move.
func (l *learnable) view(t device.Tensor) G.Value {
	if l.grad == nil || l.bucket.Addr() != t.Buf.Addr() {
		l.grad, l.bucket = l.viewOf(t), t.Buf
	}
	return l.grad
}

// viewOf returns a value of the same kind as the node's, in t's memory.
func (l *learnable) viewOf(t device.Tensor) G.Value {
	_, scalar := l.node.Value().(G.Scalar)
	if scalar {
		l.held = append(l.held, t.Buf.Owner()) // a scalar value does not keep the memory alive
	}
	switch {
	case t.DType == device.Float32 && scalar:
		return (*G.F32)(&device.Elements[float32](t)[0])
	case scalar:
		return (*G.F64)(&device.Elements[float64](t)[0])
	case t.DType == device.Float32:
		return dense(t, device.Elements[float32](t))
	default:
		return dense(t, device.Elements[float64](t))
	}
}

// dense returns a tensor that shares t's memory and keeps it alive.
func dense[T float32 | float64](t device.Tensor, data []T) *tensor.Dense {
	d := tensor.New(tensor.WithShape(t.Shape...), tensor.WithBacking(data))
	runtime.AddCleanup(d, func(device.Buffer) {}, t.Buf)
	return d
}

// sink gives a learnable's gradient to this project's optimizers. No backward pass of autograd uses
// it.
type sink struct {
	r *buckets.Reducer
	i int
}

func (s *sink) Grad() device.Tensor { return s.r.Grad(s.i) }
func (s *sink) Settle()             { s.r.Settle(s.i) }
func (s *sink) Scale() float64      { return s.r.Scale() }
func (s *sink) Ready(device.Event)  {}
func (s *sink) Pending() bool       { return s.r.Pending() }
func (s *sink) Err() error          { return s.r.Err() }
func (s *sink) Skip() device.Tensor { return s.r.Flags() }
