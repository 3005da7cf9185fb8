package autograd_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/torchtest"
)

func TestLayoutGradients(t *testing.T) {
	one := func(name string, f func(x *autograd.Variable) *autograd.Variable, shape ...int) gradCase {
		return gradCase{name, []device.Shape{shape}, -2, 2, func(in variables) *autograd.Variable { return f(in[0]) }}
	}
	checkGradients(t, []gradCase{
		one("Reshape", func(x *autograd.Variable) *autograd.Variable { return autograd.Reshape(x, 4, -1) }, 2, 3, 2),
		one("Flatten", func(x *autograd.Variable) *autograd.Variable { return autograd.Flatten(x, 1) }, 2, 3, 2),
		one("Permute", func(x *autograd.Variable) *autograd.Variable { return autograd.Permute(x, 2, 0, -2) }, 2, 3, 4),
		one("Transpose", func(x *autograd.Variable) *autograd.Variable { return autograd.Transpose(x, 1, -1) }, 2, 3, 4),
		one("Slice, a view", func(x *autograd.Variable) *autograd.Variable { return autograd.Slice(x, 0, 1, -1) }, 4, 3),
		one("Slice", func(x *autograd.Variable) *autograd.Variable { return autograd.Slice(x, -1, 1, 3) }, 2, 4),
		one("Slice", func(x *autograd.Variable) *autograd.Variable { return autograd.Slice(x, 0, 1, math.MaxInt, 2) }, 6, 2),
		one("Slice twice", func(x *autograd.Variable) *autograd.Variable {
			return autograd.Mul(autograd.Slice(x, 1, 0, 3), autograd.Slice(x, 1, 2, 5))
		}, 2, 5),
		one("Expand", func(x *autograd.Variable) *autograd.Variable { return autograd.Expand(x, 2, 3, 4) }, 3, 1),
		{"Concat", []device.Shape{{2, 3}, {2, 1}, {2, 2}}, -2, 2, func(in variables) *autograd.Variable { return autograd.Concat(1, in...) }},
		{"Concat of one twice", []device.Shape{{2, 3}}, -2, 2, func(in variables) *autograd.Variable { return autograd.Concat(-2, in[0], in[0]) }},
		{"Stack", []device.Shape{{2, 3}, {2, 3}}, -2, 2, func(in variables) *autograd.Variable { return autograd.Stack(-1, in...) }},
	})
}

// numbers returns random numbers, as an input of a parity case.
func numbers(rng *rand.Rand, shape ...int) torchtest.Input {
	return torchtest.Input{Shape: shape, Numbers: values(rng, device.Shape(shape).Len(), -2, 2)}
}

// anyShape returns a random shape with the given number of axes. The sizes are mostly small and
// sometimes 0.
func anyShape(rng *rand.Rand, axes int) []int {
	shape := make([]int, axes)
	for i := range shape {
		if shape[i] = 1 + rng.IntN(5); rng.IntN(30) == 0 {
			shape[i] = 0
		}
	}
	return shape
}

// list formats a list for Python.
func list(v []int) string { return strings.ReplaceAll(device.Shape(v).String(), " ", ", ") }

// signed returns the axis unchanged, or counted from the end.
func signed(rng *rand.Rand, axis, axes int) int {
	if rng.IntN(2) == 0 {
		return axis - axes
	}
	return axis
}

const parityShapes = 200

func TestLayoutParityWithPyTorch(t *testing.T) {
	testkit.Long(t)
	rng := rand.New(rand.NewPCG(3, 4))
	var cases []torchtest.Case
	add := func(expr string, in []torchtest.Input, f func(x []*autograd.Variable) *autograd.Variable) {
		shapes := ""
		for _, x := range in {
			shapes += fmt.Sprint(x.Shape)
		}
		dt := []device.DType{device.Float64, device.Float32}[len(cases)%2]
		cases = append(cases, torchtest.Case{Name: expr + " of " + shapes, Expr: expr, In: in, DType: dt, Go: f})
	}
	for range parityShapes {
		axes := 1 + rng.IntN(4)
		shape := anyShape(rng, axes)
		x := []torchtest.Input{numbers(rng, shape...)}

		order := rng.Perm(axes)
		for i, axis := range order {
			order[i] = signed(rng, axis, axes)
		}
		add(fmt.Sprintf("x[0].permute(%s)", list(order)), x, func(x []*autograd.Variable) *autograd.Variable {
			return autograd.Permute(x[0], order...)
		})

		a, b := signed(rng, rng.IntN(axes), axes), signed(rng, rng.IntN(axes), axes)
		add(fmt.Sprintf("x[0].transpose(%d, %d)", a, b), x, func(x []*autograd.Variable) *autograd.Variable {
			return autograd.Transpose(x[0], a, b)
		})

		from, to, step := rng.IntN(14)-7, rng.IntN(14)-7, 1+rng.IntN(3)
		axis := rng.IntN(axes)
		subscript := ""
		for range axis {
			subscript += ":, "
		}
		add(fmt.Sprintf("x[0][%s%d:%d:%d]", subscript, from, to, step), x, func(x []*autograd.Variable) *autograd.Variable {
			return autograd.Slice(x[0], axis, from, to, step)
		})

		parts := []torchtest.Input{x[0]}
		for range rng.IntN(3) {
			other := append([]int{}, shape...)
			other[axis] = rng.IntN(4)
			parts = append(parts, numbers(rng, other...))
		}
		add(fmt.Sprintf("torch.cat(x, %d)", axis), parts, func(x []*autograd.Variable) *autograd.Variable {
			return autograd.Concat(axis, x...)
		})
		at := signed(rng, rng.IntN(axes+1), axes+1)
		add(fmt.Sprintf("torch.stack(x, %d)", at), []torchtest.Input{x[0], numbers(rng, shape...)}, func(x []*autograd.Variable) *autograd.Variable {
			return autograd.Stack(at, x...)
		})

		start := signed(rng, axis, axes)
		add(fmt.Sprintf("x[0].flatten(%d)", start), x, func(x []*autograd.Variable) *autograd.Variable {
			return autograd.Flatten(x[0], start)
		})
		small := append([]int{}, shape...)
		for i := range small {
			if rng.IntN(2) == 0 {
				small[i] = 1
			}
		}
		small = small[rng.IntN(axes+1):]
		add(fmt.Sprintf("x[0].expand(%s)", list(shape)), []torchtest.Input{numbers(rng, small...)}, func(x []*autograd.Variable) *autograd.Variable {
			return autograd.Expand(x[0], shape...)
		})
	}
	torchtest.Check(t, cases)
}

// A slice of leading rows and a Reshape share x's memory; other slices do not.
func TestViewsShareMemory(t *testing.T) {
	dev := newDevice(t)
	x := autograd.FromSlice(dev, []float32{0, 1, 2, 3, 4, 5}, 3, 2)
	memory := device.Elements[float32](x.Tensor())
	for name, c := range map[string]struct {
		y      *autograd.Variable
		at     int // the index in x of y's first element
		shared bool
	}{
		"Reshape":       {autograd.Reshape(x, 2, -1), 0, true},
		"Flatten":       {autograd.Flatten(x, 0), 0, true},
		"leading rows":  {autograd.Slice(x, 0, 1, math.MaxInt), 2, true},
		"part of a row": {autograd.Slice(autograd.Slice(x, 0, 1, 2), 1, 1, 2), 3, true},
		"columns":       {autograd.Slice(x, 1, 1, 2), 1, false},
		"every other":   {autograd.Slice(x, 0, 0, 3, 2), 0, false},
	} {
		first := &device.Elements[float32](c.y.Tensor())[0]
		if got := first == &memory[c.at]; got != c.shared {
			t.Errorf("%s: shares x's memory: %v, want %v", name, got, c.shared)
		}
	}
}
