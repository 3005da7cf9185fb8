package autograd

import "github.com/goddp/goddp/device"

// MoveTo makes v, a leaf, live in t, memory of the caller's of v's type and
// number of elements that stays as it is while v is in use. What v holds is
// copied there, on the compute stream, and v's own memory is freed: other handles
// to it ([Variable.Detach]), and graphs that it is a part of, are of no use any
// more. v's gradient, and who owns it, stay. The error is the device's, and leaves
// v where it is. MoveTo panics with a [*GraphError] when v is a result, and with a
// [*device.DTypeError] or [*device.ShapeError] when t does not fit.
func (v *Variable) MoveTo(t device.Tensor) error {
	src := v.Tensor()
	switch {
	case v.node != nil && v.node.leaf == nil:
		panic(&GraphError{Call: "MoveTo", Variable: v.String(), Reason: "it is the result of an operation"})
	case t.DType != src.DType:
		panic(&device.DTypeError{Op: "MoveTo of " + v.String(), Got: t.DType, Want: src.DType})
	case t.Len() != src.Len():
		panic(&device.ShapeError{Op: "MoveTo of " + v.String(), A: t.Shape, B: src.Shape})
	}
	if err := v.Err(); err != nil {
		return err
	}
	t = t.Reshape(src.Shape...)
	if err := v.s.dev.Copy(v.s.dev.Compute(), t.Buf, src.Buf); err != nil {
		return err
	}
	old := v.mem
	v.t, v.mem = t, &block{made: v.s.number, version: old.version}
	if l := v.leaf(); l != nil {
		l.v.t, l.v.mem = v.t, v.mem
	}
	v.s.free(old, "by MoveTo")
	return nil
}
