package device

import (
	"fmt"
	"slices"
	"strings"
)

// Shape holds a tensor's sizes, outermost first. The empty shape is a scalar.
type Shape []int

// Len is the number of elements, 1 for a scalar.
func (s Shape) Len() int {
	n := 1
	for _, d := range s {
		n *= d
	}
	return n
}

// Equal tells whether both shapes have the same sizes.
func (s Shape) Equal(o Shape) bool { return slices.Equal(s, o) }

func (s Shape) String() string {
	var b strings.Builder
	b.WriteByte('[')
	for i, d := range s {
		if i > 0 {
			b.WriteByte(' ')
		}
		fmt.Fprint(&b, d)
	}
	b.WriteByte(']')
	return b.String()
}

// Broadcast is the shape that a and b take together by NumPy's rule: aligned
// at the last axis, sizes are equal or one of them is 1. op names the caller
// in the [*ShapeError] it panics with when they do not fit.
func Broadcast(op string, a, b Shape) Shape {
	out := make(Shape, max(len(a), len(b)))
	for i := 1; i <= len(out); i++ {
		x, y := a.at(-i), b.at(-i)
		if x != y && x != 1 && y != 1 {
			panic(&ShapeError{Op: op, A: a, B: b})
		}
		if x == 1 {
			x = y
		}
		out[len(out)-i] = x
	}
	return out
}

// at is the size of axis i counted from the end (-1 is the last); 1 for an
// axis that s does not have.
func (s Shape) at(i int) int {
	if -i > len(s) {
		return 1
	}
	return s[len(s)+i]
}

// ShapeError is the panic value of an operation whose operands do not fit.
type ShapeError struct {
	Op    string
	A, B  Shape
	Layer string // the layer's name within its model ("layer4.0.conv1"), where it is known
}

// InLayer names the layer, unless it has a name already: the first to know it is the
// innermost.
func (e *ShapeError) InLayer(name string) { setLayer(&e.Layer, name) }

func (e *ShapeError) Error() string {
	return inLayer(e.Layer) + fmt.Sprintf("%s: shapes %v and %v do not fit", e.Op, e.A, e.B)
}

func setLayer(layer *string, name string) {
	if *layer == "" {
		*layer = name
	}
}

// inLayer is what a message begins with. The names of the layers of a sequence are numbers.
func inLayer(layer string) string {
	switch {
	case layer == "":
		return ""
	case layer[0] >= '0' && layer[0] <= '9':
		return "layer " + layer + ": "
	}
	return layer + ": "
}

// DTypeError is the panic value of an operation whose operands' element types
// do not fit, or that has no implementation for them.
type DTypeError struct {
	Op        string
	Got, Want DType
	Computes  []DType // all that the device computes in, where Got is none of them
	Layer     string  // as in [ShapeError]
}

// InLayer names the layer, unless it has a name already.
func (e *DTypeError) InLayer(name string) { setLayer(&e.Layer, name) }

func (e *DTypeError) Error() string {
	if len(e.Computes) > 0 {
		return inLayer(e.Layer) + fmt.Sprintf("%s: got %v, and the device computes in %v alone", e.Op, e.Got, e.Computes)
	}
	return inLayer(e.Layer) + fmt.Sprintf("%s: got %v, want %v", e.Op, e.Got, e.Want)
}

// LabelError is the panic value of a label that names no class.
type LabelError struct {
	Row     int
	Label   int64
	Classes int
}

func (e *LabelError) Error() string {
	return fmt.Sprintf("CrossEntropy: row %d has label %d of %d classes", e.Row, e.Label, e.Classes)
}
