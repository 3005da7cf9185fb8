package ddpgorgonia

import (
	"errors"
	"fmt"
	"hash"
	"hash/fnv"
	"runtime/debug"

	"github.com/chewxy/hm"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/goddp/goddp/profile"
)

// op is the common part of all operations of this package. To Gorgonia they are identities in type
// and shape, whose results must not be overwritten.
type op struct {
	model *Model
	i     int // the index of the learnable; -1: none
}

func (op) Arity() int    { return 1 }
func (op) Type() hm.Type { return hm.NewFnType(hm.TypeVariable('a'), hm.TypeVariable('a')) }
func (op) InferShape(shapes ...G.DimSizer) (tensor.Shape, error) {
	return shapes[0].(tensor.Shape), nil
}
func (op) Do(in ...G.Value) (G.Value, error) { return in[0], nil }
func (op) ReturnsPtr() bool                  { return true }
func (op) CallsExtern() bool                 { return false }
func (op) OverwritesInput() int              { return -1 }

// write adds to the hash the model and the learnable, which distinguish this operation from all others. Gorgonia
// treats two nodes with equal hashes as one.
func (o op) write(h hash.Hash, kind string) { fmt.Fprintf(h, "goddp %s %p %d", kind, o.model, o.i) }

func (o op) hash(kind string) uint32 {
	h := fnv.New32a()
	o.write(h, kind)
	return h.Sum32()
}

// use is the operation between a learnable and the graph. It returns the learnable's value.
// Backpropagation sums the gradient over all uses before it differentiates this operation, so
// SymDiff gets the whole gradient.
type use struct{ op }

func (o *use) String() string        { return "use " + o.model.learnables[o.i].Name() }
func (o *use) WriteHash(h hash.Hash) { o.write(h, "use") }
func (o *use) Hashcode() uint32      { return o.hash("use") }
func (o *use) DiffWRT(int) []bool    { return []bool{true} }

// SymDiff adds a ready operation after the gradient. If the gradient is a matrix product with the
// learnable's shape, the ready operation replaces the product, so that it can compute it directly
// in the bucket.
func (o *use) SymDiff(_ G.Nodes, _, grad *G.Node) (G.Nodes, error) {
	r, operands := &ready{op: o.op}, G.Nodes{grad}
	if p, factors := product(grad); p != nil && grad.Shape().Eq(o.model.learnables[o.i].node.Shape()) {
		r.product, operands = p, factors
	}
	n, err := G.ApplyOp(r, operands...)
	return G.Nodes{n}, err
}

// preallocated is an operation that can write its result to given memory.
type preallocated interface {
	G.BinaryOp
	G.UsePreallocDoer
}

// product returns the operation and the operands of n if n is a product of two matrices, else nil.
// Among Gorgonia's binary operations only linear algebra calls external code (CallsExtern).
func product(n *G.Node) (preallocated, G.Nodes) {
	p, ok := n.Op().(preallocated)
	if !ok || !p.CallsExtern() || n.Dims() != 2 {
		return nil, nil
	}
	var factors G.Nodes
	for it := n.Graph().From(n.ID()); it.Next(); {
		f := it.Node().(*G.Node)
		if f.Dims() != 2 {
			return nil, nil
		}
		factors = append(factors, f)
	}
	return p, factors
}

// ready handles a final gradient. It writes the gradient to its place in the buckets, or adds it to the
// gradient there. Then it notifies the reducer, while the rest of the tape still has to run. Its value
// is the view of the bucket.
type ready struct {
	op
	product preallocated // computes the gradient from the operands; nil: the operand is the gradient
}

func (o *ready) String() string        { return "gradient of " + o.model.learnables[o.i].Name() }
func (o *ready) WriteHash(h hash.Hash) { o.write(h, "ready") }
func (o *ready) Hashcode() uint32      { return o.hash("ready") }

func (o *ready) Arity() int {
	if o.product != nil {
		return o.product.Arity()
	}
	return o.op.Arity()
}

func (o *ready) Type() hm.Type {
	if o.product != nil {
		return o.product.Type()
	}
	return o.op.Type()
}

func (o *ready) InferShape(shapes ...G.DimSizer) (tensor.Shape, error) {
	if o.product != nil {
		return o.product.InferShape(shapes...)
	}
	return o.op.InferShape(shapes...)
}

// Do runs on the machine's goroutine, where a panic would end the process. It recovers a panic,
// logs the stack, and stores the panic's value, with which RunAll panics again.
func (o *ready) Do(in ...G.Value) (v G.Value, err error) {
	p := o.model.pass
	if p == nil {
		return nil, errNoPass
	}
	defer func() {
		if p.thrown = recover(); p.thrown != nil {
			o.model.pg.Log().Error("an operation on the tape panicked; RunAll panics with the same value", "operation", o, "panic", p.thrown, "stack", string(debug.Stack()))
			err = errThrown
		}
		p.err = err // an error ends the tape
	}()
	return o.do(in)
}

func (o *ready) do(in []G.Value) (G.Value, error) {
	m := o.model
	if err := m.reducer.Failed(); err != nil {
		return nil, err // ends the tape, so that the program can return before the process is ended: see comm.AsyncErrorHandling
	}
	l, compute := m.learnables[o.i], m.pg.Device().Compute()
	start := m.mark()
	m.reducer.Settle(o.i)
	dst, overwrite := l.view(m.reducer.Grad(o.i)), m.reducer.State(o.i).Write()
	written, err := in[0], error(nil)
	switch {
	case o.product == nil:
	case overwrite:
		written, err = o.product.UsePreallocDo(dst, in...)
	default:
		written, err = o.product.Do(in...)
	}
	if err != nil {
		return nil, err
	}
	if written != dst {
		if err := m.accumulate(m.reducer.Grad(o.i), written, overwrite); err != nil {
			return nil, fmt.Errorf("gradient of %q: %w", l.Name(), err)
		}
	}
	m.span(o.String(), start)
	m.reducer.Ready(o.i, compute.Mark())
	return dst, nil
}

// turn is an identity on the cost. It marks the end of the forward pass.
type turn struct{ op }

func (o *turn) String() string        { return "turn" }
func (o *turn) WriteHash(h hash.Hash) { o.write(h, "turn") }
func (o *turn) Hashcode() uint32      { return o.hash("turn") }
func (o *turn) DiffWRT(int) []bool    { return []bool{true} }

func (o *turn) SymDiff(_ G.Nodes, _, grad *G.Node) (G.Nodes, error) { return G.Nodes{grad}, nil }

func (o *turn) Do(in ...G.Value) (G.Value, error) {
	if p := o.model.pass; p != nil {
		p.turned = o.model.mark()
	}
	return in[0], nil
}

// keep is the last operation of a program and uses the results of all use operations. Without it
// Gorgonia might let another operation overwrite the learnables' values, because it reuses the memory of
// operands that are not inputs and are not used later.
type keep struct {
	op
	types []hm.Type // the types of the operands
}

func (o *keep) Arity() int { return len(o.types) }
func (o *keep) Type() hm.Type {
	return hm.NewFnType(append(o.types[:len(o.types):len(o.types)], G.Float64)...)
}
func (o *keep) String() string        { return "keep" }
func (o *keep) WriteHash(h hash.Hash) { o.write(h, "keep") }
func (o *keep) Hashcode() uint32      { return o.hash("keep") }

func (o *keep) InferShape(...G.DimSizer) (tensor.Shape, error) { return tensor.ScalarShape(), nil }
func (o *keep) Do(...G.Value) (G.Value, error)                 { return G.NewF64(0), nil }

var (
	errNoPass = errors.New("ddpgorgonia: only a machine that Model.NewTapeMachine made can compute the gradients of a model")
	errThrown = errors.New("panicked")
)

// mark records a moment on the compute stream. It returns nil if no trace is written.
func (m *Model) mark() profile.Moment {
	if !m.trace.On() {
		return nil
	}
	return m.pg.Device().Compute().Record()
}

// span adds a span to the trace, from start, a moment that mark returned, until now.
func (m *Model) span(name string, start profile.Moment, args ...profile.Arg) {
	if start != nil {
		m.trace.Add(profile.Span{Track: profile.Compute, Name: name, Begin: start, End: m.mark(), Args: args})
	}
}
