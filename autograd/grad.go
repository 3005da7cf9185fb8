package autograd

import "github.com/goddp/goddp/device"

// GradSink owns the memory of a leaf's gradient in place of autograd. A backward pass calls it on
// Backward's goroutine for each leaf that the pass reaches, in this order: Fresh once; Grad, before the
// first write; Scale, before the last write; Ready, after the last write. A pass that fails may stop
// after any of these calls; it then calls Fail.
//
// A pass may reach the leaf without coming through an [Observer] that belongs to the sink. It calls
// the same methods then.
type GradSink interface {
	// Fresh reports whether the next write overwrites the gradient: it is the first write since
	// the gradient was last used or zeroed. After this call the gradient exists and is no
	// longer fresh.
	Fresh() bool
	// Grad returns the tensor of the gradient, of the leaf's shape, or the zero Tensor if there
	// is no gradient. It may have another floating-point type than the leaf; the pass converts
	// gradients to that type and adds them up in it.
	Grad() device.Tensor
	// Settle is called before each use of a Variable that Grad returned. It makes work that is
	// enqueued on the compute stream from now on see the gradient as the last pass left it.
	Settle()
	// Scale returns a factor for the last write of this pass. It multiplies the whole gradient,
	// including the part that earlier passes wrote. 1 changes nothing.
	Scale() float64
	// Ready is called after this pass's last write was enqueued. The write is done at event e of
	// the compute stream.
	Ready(e device.Event)
	// Fail is called if a pass that reaches the leaf fails, before any Observer is notified. The
	// gradient is then undefined until it is overwritten, and Err must return an error until
	// then or until Zero.
	Fail(err error)

	// Zero is called when the program zeroes the gradient.
	Zero()
	// Pending reports whether it is still unknown whether an optimizer may use the gradient.
	// Err then may wait.
	Pending() bool
	// Err returns nil if an optimizer may use the gradient. A wait within Err has a deadline. An
	// error that matches [device.ErrSkipped] is one that the flags of Skip also report on the
	// device.
	Err() error
	// Skip returns bytes in device memory. If one of them is not zero, the device skips the update
	// with this gradient. The zero Tensor stands for no bytes.
	Skip() device.Tensor
}

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
		v.node = &node{leaf: &leaf{v: v.alias()}}
	case v.node.leaf == nil:
		panic(&GraphError{Call: "RequireGrad", Variable: v.String(), Reason: "it is the result of an operation; Detach it first"})
	}
	return v
}

// Freeze stops v, a leaf, from getting gradients until RequireGrad is called again, also in graphs
// that already use v. It zeroes the gradient as ZeroGrad does; a [GradSink] stays. Freeze does nothing
// if v gets no gradients, and panics with a [*GraphError] if v is the result of an operation. It
// returns v.
func (v *Variable) Freeze() *Variable {
	if v.node == nil {
		return v
	}
	if v.node.leaf == nil {
		panic(&GraphError{Call: "Freeze", Variable: v.String(), Reason: "it is the result of an operation; Detach it"})
	}
	v.ZeroGrad()
	v.s.changes++
	v.node, v.idle = nil, v.node
	return v
}

// RequiresGrad reports whether a backward pass can reach v.
func (v *Variable) RequiresGrad() bool { return v.node != nil }

// SetGradSink makes s the owner of v's gradient, or autograd if s is nil. It drops the present
// gradient. If s is not nil, it panics with a [*GraphError] unless v is a leaf that requires a
// gradient, or did before it was frozen.
func (v *Variable) SetGradSink(s GradSink) {
	l := v.leaf()
	if l == nil && s == nil {
		return
	}
	if l == nil {
		panic(&GraphError{Call: "SetGradSink", Variable: v.String(), Reason: "it is no leaf that requires a gradient"})
	}
	v.s.changes++
	if l.mem != nil {
		v.s.free(l.mem, "by SetGradSink")
	}
	*l = leaf{v: l.v, sink: s}
}

// Grad returns v's gradient, a view of memory that later passes write to. It returns nil if there is
// no gradient: v is not a leaf that requires one, no pass has reached v, or it was zeroed since.
func (v *Variable) Grad() *Variable {
	l := v.leaf()
	if l == nil {
		return nil
	}
	v.s.captures.touch(l, true)
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

// GradPending reports whether the backward pass that computed v's gradient may still turn out to have
// failed, in another process or on a device. GradErr then waits. A program may enqueue an update that
// respects [Variable.GradSkip] before that.
func (v *Variable) GradPending() bool {
	l := v.leaf()
	return l != nil && l.sink != nil && l.sink.Pending()
}

// GradErr returns nil if an optimizer may use v's gradient, else the error of the backward pass that
// should have computed it. If the outcome is not known yet, GradErr waits: see [Variable.GradPending].
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

// GradSkip returns bytes in device memory. If one of them is not zero, the device must not update v
// with its gradient. GradSkip returns the zero Tensor if there are none.
func (v *Variable) GradSkip() device.Tensor {
	if l := v.leaf(); l != nil && l.sink != nil {
		return l.sink.Skip()
	}
	return device.Tensor{}
}

// GradDivided reports whether the gradient's owner divides it among ranks, as package ddp/zero does: Grad is then
// defined in this rank's part alone. A [GradSink] reports it by a method Divided() bool.
func (v *Variable) GradDivided() bool {
	l := v.leaf()
	if l == nil {
		return false
	}
	d, ok := l.sink.(interface{ Divided() bool })
	return ok && d.Divided()
}

// ZeroGrad drops v's gradient: Grad returns nil until the next backward pass, whose first write
// overwrites the memory. ZeroGrad writes nothing itself.
func (v *Variable) ZeroGrad() {
	l := v.leaf()
	if l == nil {
		return
	}
	v.s.captures.touch(l, false)
	l.err, l.there = nil, false
	if l.sink != nil {
		l.sink.Zero()
	}
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

// leaf holds the gradient of a leaf variable, or the GradSink that owns this gradient.
type leaf struct {
	v      *Variable
	sink   GradSink  // nil if autograd owns the gradient
	handle *Variable // the last result of Grad, which returns it again while it is valid

	// The gradient, if autograd owns it.
	t     device.Tensor
	mem   *block // nil before the first pass
	there bool   // whether a pass wrote it since it was last zeroed
	err   error  // the error of a pass that may have written a part of it
}

// begin prepares for the first write of a pass. It returns the tensor to write, and whether the write
// overwrites it.
func (l *leaf) begin() (dst device.Tensor, fresh bool, err error) {
	l.v.s.captures.touch(l, true)
	if l.sink != nil {
		fresh = l.sink.Fresh()
		return l.sink.Grad(), fresh, nil
	}
	if l.mem == nil {
		if r := l.v.s.captures; r != nil {
			return l.t, false, r.NotYet("%v has never had a gradient", l.v)
		}
		if l.t, err = l.v.s.alloc(l.v.t.DType, l.v.t.Shape); err != nil {
			return l.t, false, err
		}
		l.mem = &block{buf: l.t.Buf, made: l.v.s.number}
		l.v.s.addToProgram(l.mem)
	}
	fresh = !l.there
	l.there = true
	return l.t, fresh, nil
}

// failed records the error of a pass that reached l; err may be nil.
func (l *leaf) failed(err error) {
	if err == nil {
		return
	}
	l.v.s.captures.touch(l, false)
	switch {
	case l.sink != nil:
		l.sink.Fail(err)
	case l.err == nil:
		l.err = err
	}
}
