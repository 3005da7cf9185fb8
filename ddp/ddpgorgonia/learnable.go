package ddpgorgonia

import (
	"fmt"
	"runtime"
	"unsafe"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
)

// learnable is one parameter, as Gorgonia and as this project know it.
type learnable struct {
	*nn.Parameter         // over the memory of node's value
	node          *G.Node // the program's own
	use           *G.Node // what the graph uses in node's place; nil before it does

	value  uintptr       // where the variable's memory is, which is that of node's value
	grad   G.Value       // a view of a bucket
	bucket device.Buffer // the memory that it is a view of
	held   []any         // owners of memory that scalar views are of
}

func newLearnable(dev device.Device, n *G.Node) (*learnable, error) {
	var v *autograd.Variable
	switch x := n.Value().(type) {
	case *tensor.Dense:
		if dt := x.Dtype(); dt != tensor.Float32 && dt != tensor.Float64 {
			return nil, fmt.Errorf("learnable %q is of %v, want float32 or float64", n.Name(), dt)
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

// follow gives the node the variable's memory, if an optimizer has moved it.
func (l *learnable) follow() error {
	t := l.Var().Tensor()
	if t.Buf.Addr() == l.value {
		return nil
	}
	l.value = t.Buf.Addr()
	return G.Let(l.node, l.viewOf(t))
}

// view is the gradient as Gorgonia's solvers take it: memory t itself, until the
// buckets move.
func (l *learnable) view(t device.Tensor) G.Value {
	if l.grad == nil || l.bucket.Addr() != t.Buf.Addr() {
		l.grad, l.bucket = l.viewOf(t), t.Buf
	}
	return l.grad
}

// over is a value of the kind of node's own, over t's memory.
func (l *learnable) viewOf(t device.Tensor) G.Value {
	_, scalar := l.node.Value().(G.Scalar)
	if scalar {
		l.held = append(l.held, t.Buf.Owner()) // nothing else does
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

// dense is a tensor over t's memory, which it keeps.
func dense[T float32 | float64](t device.Tensor, data []T) *tensor.Dense {
	d := tensor.New(tensor.WithShape(t.Shape...), tensor.WithBacking(data))
	runtime.AddCleanup(d, func(device.Buffer) {}, t.Buf)
	return d
}

// sink is a learnable's gradient for this project's optimizers. No backward pass
// of autograd's reaches it.
type sink struct {
	r *reducer.Reducer
	i int
}

func (s *sink) Fresh() bool         { return s.r.Fresh(s.i) }
func (s *sink) Settle()             { s.r.Settle(s.i) }
func (s *sink) Scale() float64      { return s.r.Scale() }
func (s *sink) Ready(device.Event)  {}
func (s *sink) Fail(error)          {}
func (s *sink) Zero()               { s.r.Zero(s.i) }
func (s *sink) Pending() bool       { return s.r.Pending() }
func (s *sink) Err() error          { return s.r.Err() }
func (s *sink) Skip() device.Tensor { return s.r.Flags() }

// Grad is the view of the bucket, once there is a gradient in it.
func (s *sink) Grad() device.Tensor {
	if s.r.Zeroed(s.i) {
		return device.Tensor{}
	}
	return s.r.Grad(s.i)
}
