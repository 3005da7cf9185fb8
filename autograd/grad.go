package autograd

import (
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/gradsink"
)

// Observer is notified of the backward passes through the variables that it observes (see [Observe]).
// It is comparable.
type Observer interface {
	// BeginBackward is called before any gradient is written. reached reports whether this pass
	// will give leaf a gradient.
	BeginBackward(reached func(leaf *Variable) bool)
	// EndBackward is called after the last gradient was written. If the pass failed, err is why.
	// Backward returns the error of EndBackward. If that error does not wrap err, Backward joins both.
	EndBackward(err error) error
}

// Observe returns another handle to out. A backward pass that starts at this handle, or comes through
// it, notifies o, once even if the pass meets o several times. If out has no graph, Observe returns
// out itself, because no pass can come through it.
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

// RequireGrad makes v, a leaf, get gradients. It returns v. It panics with a [*GraphError] if v is the
// result of an operation, and with a [*device.DTypeError] if v is not of a floating-point type.
func (v *Variable) RequireGrad() *Variable {
	switch {
	case v.idle != nil:
		v.s.changes++
		v.node, v.idle = v.idle, nil
	case v.node == nil:
		if !v.t.DType.IsFloat() {
			panic(&device.DTypeError{Op: "RequireGrad", Got: v.t.DType, Want: device.Float32})
		}
		v.node = &node{leaf: &leaf{v: v.alias(), Leaf: gradsink.Leaf{State: &gradsink.State{}}}}
	case v.node.leaf == nil:
		panic(&GraphError{Call: "RequireGrad", Variable: v.String(), Reason: "it is the result of an operation; Detach it first"})
	}
	return v
}

// Freeze stops v, a leaf, from getting gradients until RequireGrad is called again, also in graphs
// that already use v. It zeroes the gradient as ZeroGrad does. Freeze does nothing
// if v gets no gradients, and panics with a [*GraphError] if v is the result of an operation. It
// returns v.
func (v *Variable) Freeze() *Variable {
	if v.node == nil {
		return v
	}
	if v.node.leaf == nil {
		panic(&GraphError{Call: "Freeze", Variable: v.String(), Reason: "it is the result of an operation, and only a leaf can be frozen: Detach it"})
	}
	v.ZeroGrad()
	v.s.changes++
	v.node, v.idle = nil, v.node
	return v
}

// RequiresGrad reports whether a backward pass can reach v.
func (v *Variable) RequiresGrad() bool { return v.node != nil }

func init() {
	gradsink.Of = func(v any) *gradsink.Leaf {
		if l := v.(*Variable).leaf(); l != nil {
			return &l.Leaf
		}
		return nil
	}
	gradsink.Set = func(v any, s gradsink.Sink, state *gradsink.State) { v.(*Variable).setSink(s, state) }
	gradsink.Rebind = func(v any, t device.Tensor) { v.(*Variable).rebind(t) }
	gradsink.SetSource = func(v any, s gradsink.Source) { v.(*Variable).mem.source = s }
}

// setSink implements gradsink.Set.
func (v *Variable) setSink(s gradsink.Sink, state *gradsink.State) {
	l := v.leaf()
	if l == nil && s == nil {
		return
	}
	if l == nil {
		panic(&GraphError{Call: "gradsink.Set", Variable: v.String(), Reason: "it is not a leaf that requires a gradient"})
	}
	v.s.changes++
	if l.mem != nil {
		v.s.free(l.mem, "when its gradient got another owner")
	}
	if s == nil {
		state = &gradsink.State{}
	}
	*l = leaf{v: l.v, Leaf: gradsink.Leaf{Sink: s, State: state}}
}

// Grad returns v's gradient, a view of memory that later passes write to. It returns nil if there is
// no gradient: v is not a leaf that requires one, no pass has reached v, or it was zeroed since.
func (v *Variable) Grad() *Variable {
	l := v.leaf()
	if l == nil {
		return nil
	}
	v.s.capturing.touch(l, true)
	t := l.t
	if l.Sink != nil {
		t = l.Sink.Grad()
	}
	if l.Content != gradsink.Written {
		return nil
	}
	if g := l.handle; g == nil || g.t.Buf.Addr() != t.Buf.Addr() || g.node != nil || g.mem.freed != "" {
		l.handle = &Variable{s: v.s, t: t, mem: l.mem, sink: l.Sink, grad: true, name: v.name + ".grad"}
		if l.Sink != nil {
			l.handle.mem = &block{made: v.s.number}
		}
	}
	return l.handle
}

// GradErr returns nil if an optimizer may use v's gradient, else the error of the backward pass that
// should have computed it. If it is not known yet whether the pass has failed, in another process or on a device,
// GradErr waits for the outcome.
func (v *Variable) GradErr() error {
	l := v.leaf()
	switch {
	case l == nil:
		return nil
	case l.Err == nil && l.Sink != nil:
		return l.Sink.Err()
	}
	return l.Err
}

// GradDivided reports whether the gradient is divided among ranks, as package ddp/zero does: Grad is then
// defined only in this rank's part.
func (v *Variable) GradDivided() bool {
	l := v.leaf()
	if l == nil {
		return false
	}
	d, ok := l.Sink.(gradsink.Divided)
	return ok && d.Divided()
}

// ZeroGrad drops v's gradient: Grad returns nil until the next backward pass, whose first write
// overwrites the memory. ZeroGrad writes nothing itself.
func (v *Variable) ZeroGrad() {
	l := v.leaf()
	if l == nil {
		return
	}
	v.s.capturing.touch(l, false)
	l.Zero()
}

// leaf returns the leaf of v, also if v is frozen. It returns nil if v is a result or never required a
// gradient.
func (v *Variable) leaf() *leaf {
	switch {
	case v.node != nil:
		return v.node.leaf
	case v.idle != nil:
		return v.idle.leaf
	}
	return nil
}

// leaf is a leaf variable's gradient.
type leaf struct {
	gradsink.Leaf
	v      *Variable
	handle *Variable // the last result of Grad, which returns it again while it is valid

	// The memory, if autograd owns it.
	t   device.Tensor
	mem *block // nil before the first pass
}

// begin prepares for the first write of a pass. It returns the tensor to write. The write must overwrite the tensor
// if overwrite is true, and otherwise add to it.
func (l *leaf) begin() (dst device.Tensor, overwrite bool, err error) {
	l.v.s.capturing.touch(l, true)
	if l.Sink != nil {
		l.Sink.Settle()
		dst = l.Sink.Grad()
		return dst, l.Write(), nil
	}
	if l.mem == nil {
		if r := l.v.s.capturing; r != nil {
			return l.t, false, r.NotYet("%v has never had a gradient", l.v)
		}
		if l.t, err = l.v.s.alloc(l.v.t.DType, l.v.t.Shape); err != nil {
			return l.t, false, err
		}
		l.mem = &block{buf: l.t.Buf, made: l.v.s.number}
		l.v.s.addToProgram(l.mem)
	}
	return l.t, l.Write(), nil
}

// failed notes the error of a pass that reached l; err may be nil.
func (l *leaf) failed(err error) {
	if err != nil && l.Err == nil {
		l.v.s.capturing.touch(l, false)
		l.Err = err
	}
}
