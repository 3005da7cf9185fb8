package autograd

import (
	"fmt"
	"slices"

	"github.com/goddp/goddp/device"
)

// FreedError is the panic value of the use of a variable whose memory was freed.
type FreedError struct {
	Op    string // the operation that computed the variable; empty for a leaf
	Name  string // the variable's name, if it has one
	Step  int    // the step in which the variable was made
	Freed string // the cause: "when step 4 began at Linear"
}

func (e *FreedError) Error() string {
	advice := "Retain it or read it before"
	if e.Op == "" {
		advice = "use it before"
	}
	return fmt.Sprintf("autograd: %s made in step %d was freed %s; %s", label(e.Op, e.Name), e.Step, e.Freed, advice)
}

// DeviceError is the panic value of an operation on variables of two devices.
type DeviceError struct {
	Op   string
	A, B string // the devices
}

func (e *DeviceError) Error() string {
	return fmt.Sprintf("autograd: %s: operands on %s and on %s", e.Op, e.A, e.B)
}

// GraphError is the panic value of a call that is invalid for the variable's place in its graph.
type GraphError struct {
	Call     string // "Backward"
	Variable string // the variable or the operation
	Reason   string
}

func (e *GraphError) Error() string {
	return fmt.Sprintf("autograd: %s of %s: %s", e.Call, e.Variable, e.Reason)
}

// axisOf returns the index of an axis of shape, from 0. A negative axis counts from the end.
func axisOf(op string, axis int, shape device.Shape) int {
	if axis < -len(shape) || axis >= len(shape) {
		panic(&device.ShapeError{Op: op, A: slices.Clone(shape), Want: fmt.Sprintf("a shape with an axis %d", axis)})
	}
	if axis < 0 {
		axis += len(shape)
	}
	return axis
}

// label returns the name of a variable in messages.
func label(op, name string) string {
	if op == "" {
		op = "variable"
	}
	if name == "" {
		return op
	}
	return fmt.Sprintf("%s %q", op, name)
}
