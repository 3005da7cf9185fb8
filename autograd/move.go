package autograd

import "github.com/goddp/goddp/device"

// MoveTo moves v, a leaf, to the memory t. The caller owns t and must keep it while v is in use. t has
// v's type and as many elements. MoveTo copies v's content on the compute stream and frees v's old
// memory. Other handles to that memory ([Variable.Detach]), and graphs that use v, become invalid. v
// keeps its gradient and the owner of its gradient. If MoveTo returns an error of the device, v has
// not moved. MoveTo panics with a [*GraphError] if v is a result, and with a [*device.DTypeError] or a
// [*device.ShapeError] if t does not fit.
func (v *Variable) MoveTo(t device.Tensor) error {
	v.alive()
	src := v.t
	switch {
	case v.node != nil && v.node.leaf == nil:
		panic(&GraphError{Call: "MoveTo", Variable: v.String(), Reason: "it is the result of an operation, and only a leaf can be moved"})
	case t.DType != src.DType:
		panic(&device.DTypeError{Op: "MoveTo of " + v.String(), Got: t.DType, Want: src.DType})
	case t.Len() != src.Len():
		panic(&device.ShapeError{Op: "MoveTo of " + v.String(), A: t.Shape, B: src.Shape})
	}
	if err := v.Err(); err != nil {
		return err
	}
	v.s.applied++ // a Source fills the memory as for an operation
	if err := v.use(false); err != nil {
		return err
	}
	t = t.Reshape(src.Shape...)
	if err := v.s.dev.Copy(v.s.dev.Compute(), t.Buf, src.Buf); err != nil {
		return err
	}
	v.s.changes++
	old := v.mem
	v.t, v.mem = t, &block{made: v.s.number, version: old.version}
	if l := v.leaf(); l != nil {
		l.v.t, l.v.mem = v.t, v.mem
	}
	v.s.free(old, "by MoveTo")
	return nil
}

// rebind implements gradsink.Rebind.
func (v *Variable) rebind(t device.Tensor) {
	v.t = t.Reshape(v.t.Shape...)
	if l := v.leaf(); l != nil {
		l.v.t = v.t
	}
}
