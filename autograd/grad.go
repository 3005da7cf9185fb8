package autograd

import "github.com/goddp/goddp/device"

// GradSink owns the gradient of a leaf in autograd's place: where it lives
// and when it is final. A backward pass calls its methods on the goroutine
// that runs Backward, for a leaf that it reaches in this order: Fresh once,
// then Grad, before the first write; Scale before the last; Ready after it.
//
// A pass may reach the leaf without coming through any [Observer] of the
// sink's: then too the gradient is written, and the sink is asked for Scale and
// told Ready, to make of it what it will. A pass that fails may end after any
// of these calls, and with Fail.
type GradSink interface {
	// Fresh tells whether the next write is the first since the gradient
	// was last used or zeroed: then it overwrites. By this call the gradient
	// is there, and no longer fresh.
	Fresh() bool
	// Grad is where the gradient lives, of the leaf's shape; the zero Tensor
	// while there is none. Its type is the leaf's, or another floating-point
	// one, which gradients are converted to and added up in.
	Grad() device.Tensor
	// Settle has what the compute stream is given from now on see the gradient
	// as the last pass left it. It is called before each use of a Variable that
	// Grad returned.
	Settle()
	// Scale is folded into the last write of this pass: it multiplies the
	// whole gradient, with what earlier passes left there. 1 for none.
	Scale() float64
	// Ready says that at e, on the compute stream, this pass's last write is
	// done.
	Ready(e device.Event)
	// Fail says that a pass that was to give the leaf a gradient ended with err,
	// before any Observer is told: the gradient is undefined until it is
	// overwritten. Until then, or Zero, the sink's Err has to say so.
	Fail(err error)

	// Zero says that the program has done with the gradient.
	Zero()
	// Pending tells whether it is not known yet whether an optimizer may use
	// the gradient: Err may have to wait.
	Pending() bool
	// Err is nil if an optimizer may use the gradient. What it waits for has a
	// deadline. An error that matches [device.ErrSkipped] is one that Skip's
	// flags tell the device of.
	Err() error
	// Skip is bytes which, when one is not zero on the device, forbid the
	// update with this gradient; the zero Tensor for none.
	Skip() device.Tensor
}

// Observer is told of the backward passes through the outputs that it watches
// (see [Observe]). It is comparable.
type Observer interface {
	// BeginBackward is called before any gradient is written; reached tells
	// whether this pass will give leaf a gradient.
	BeginBackward(reached func(leaf *Variable) bool)
	// EndBackward is called after the last gradient was written, or when the
	// pass failed, with its error. Backward returns the error of EndBackward
	// along with, or wrapped around, that of the pass.
	EndBackward(err error) error
}

// Observe is another handle to out: a backward pass that begins there, or
// comes through there, tells o. A pass that meets one observer several times
// tells it once. A variable without a graph cannot be passed through: it is
// returned as it is.
func Observe(out *Variable, o Observer) *Variable {
	out.alive()
	if out.node == nil {
		return out
	}
	v := out.alias()
	v.node = out.node
	v.observers = append(out.observers[:len(out.observers):len(out.observers)], o)
	return v
}

// RequireGrad makes a leaf one that gets gradients. It returns v. It panics
// with a [*GraphError] when v is part of a graph, and with a
// [*device.DTypeError] when v holds no floating-point numbers.
func (v *Variable) RequireGrad() *Variable {
	switch {
	case v.idle != nil:
		v.node, v.idle = v.idle, nil
	case v.node == nil:
		if !v.t.DType.IsFloat() {
			panic(&device.DTypeError{Op: "RequireGrad", Got: v.t.DType, Want: device.Float32})
		}
		v.node = &node{leaf: &leaf{v: v.alias()}}
	case v.node.leaf == nil:
		panic(&GraphError{Call: "RequireGrad", Variable: v.String(), Reason: "it is the result of an operation; Detach it first"})
	}
	return v
}

// Freeze makes v, a leaf, one that gets no gradients until RequireGrad is called
// again, also in graphs that it is a part of already. The gradient so far is
// forgotten, as by ZeroGrad; a [GradSink] stays. Freeze does nothing to a leaf
// that gets none, and panics with a [*GraphError] when v is a result. It returns
// v.
func (v *Variable) Freeze() *Variable {
	if v.node == nil {
		return v
	}
	if v.node.leaf == nil {
		panic(&GraphError{Call: "Freeze", Variable: v.String(), Reason: "it is the result of an operation; Detach it"})
	}
	v.ZeroGrad()
	v.node, v.idle = nil, v.node
	return v
}

// RequiresGrad tells whether a backward pass can reach v.
func (v *Variable) RequiresGrad() bool { return v.node != nil }

// SetGradSink makes s the owner of v's gradient, or autograd again when s is
// nil; the gradient so far is dropped. It panics with a [*GraphError] when s is
// to own what v, no leaf that ever required a gradient, has not.
func (v *Variable) SetGradSink(s GradSink) {
	l := v.leaf()
	if l == nil && s == nil {
		return
	}
	if l == nil {
		panic(&GraphError{Call: "SetGradSink", Variable: v.String(), Reason: "it is no leaf that requires a gradient"})
	}
	if l.mem != nil {
		v.s.free(l.mem, "by SetGradSink")
	}
	*l = leaf{v: l.v, sink: s}
}

// Grad is v's gradient: a view of where it lives, which later passes write
// to. It is nil when there is none: v is no leaf that requires a gradient, no
// pass has reached it, or it was zeroed since.
func (v *Variable) Grad() *Variable {
	l := v.leaf()
	if l == nil {
		return nil
	}
	var t device.Tensor
	if l.sink != nil {
		t = l.sink.Grad()
	} else if l.there {
		t = l.t
	}
	if t.IsZero() {
		return nil
	}
	if g := l.handle; g == nil || g.t.Buf.Addr() != t.Buf.Addr() || g.node != nil || g.mem.freed != "" {
		l.handle = &Variable{s: v.s, t: t, mem: l.mem, sink: l.sink, grad: true, name: v.name + ".grad"}
		if l.sink != nil {
			l.handle.mem = &block{made: v.s.number}
		}
	}
	return l.handle
}

// GradPending tells whether the backward pass that made v's gradient may still
// turn out to have failed elsewhere, on another process or a device: GradErr
// then waits. An update that respects [Variable.GradSkip] may be enqueued
// before.
func (v *Variable) GradPending() bool {
	l := v.leaf()
	return l != nil && l.sink != nil && l.sink.Pending()
}

// GradErr is nil if an optimizer may use v's gradient, else the error of the
// backward pass that should have made it. It waits where that is not known yet:
// see [Variable.GradPending].
func (v *Variable) GradErr() error {
	l := v.leaf()
	switch {
	case l == nil:
		return nil
	case l.sink != nil:
		return l.sink.Err()
	}
	return l.err
}

// GradSkip is bytes which, when one is not zero on the device, forbid the
// update of v with its gradient: see [kernels.SGDStep]. It is the zero Tensor
// for none.
func (v *Variable) GradSkip() device.Tensor {
	if l := v.leaf(); l != nil && l.sink != nil {
		return l.sink.Skip()
	}
	return device.Tensor{}
}

// ZeroGrad forgets v's gradient: Grad is nil until the next backward pass,
// whose first write overwrites the memory. Nothing is written now.
func (v *Variable) ZeroGrad() {
	l := v.leaf()
	if l == nil {
		return
	}
	l.err, l.there = nil, false
	if l.sink != nil {
		l.sink.Zero()
	}
}

// leaf is nil when v is no leaf that requires a gradient, or did until it was
// frozen.
func (v *Variable) leaf() *leaf {
	switch {
	case v.node != nil:
		return v.node.leaf
	case v.idle != nil:
		return v.idle.leaf
	}
	return nil
}

// leaf is what the node of a leaf has: its gradient, or who owns that.
type leaf struct {
	v      *Variable
	sink   GradSink  // nil where autograd owns the gradient
	handle *Variable // what Grad returned last, and returns again while it is as good as new

	// The gradient that autograd owns.
	t     device.Tensor
	mem   *block // nil before the first pass
	there bool   // a pass wrote it since it was last zeroed
	err   error  // of a pass that may have written a part of it
}

// begin prepares for the first write of a pass: where it goes, and whether it
// overwrites.
func (l *leaf) begin() (dst device.Tensor, fresh bool, err error) {
	if l.sink != nil {
		fresh = l.sink.Fresh()
		return l.sink.Grad(), fresh, nil
	}
	if l.mem == nil {
		if l.t, err = l.v.s.alloc(l.v.t.DType, l.v.t.Shape); err != nil {
			return l.t, false, err
		}
		l.mem = &block{buf: l.t.Buf, made: l.v.s.number}
		l.v.s.addToScope(l.mem)
	}
	fresh = !l.there
	l.there = true
	return l.t, fresh, nil
}

// failed notes the error, if any, of a pass that reached l.
func (l *leaf) failed(err error) {
	switch {
	case err == nil:
	case l.sink != nil:
		l.sink.Fail(err)
	case l.err == nil:
		l.err = err
	}
}
