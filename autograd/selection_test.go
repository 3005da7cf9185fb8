package autograd_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/torchtest"
)

func TestSelectionGradients(t *testing.T) {
	mask := func(x *autograd.Variable, m []uint8, shape ...int) *autograd.Variable {
		return autograd.FromSlice(x.Device(), m, shape...)
	}
	one := func(name string, f func(x *autograd.Variable) *autograd.Variable, shape ...int) gradCase {
		return gradCase{name, []device.Shape{shape}, -2, 2, func(in variables) *autograd.Variable { return f(in[0]) }}
	}
	checkGradients(t, []gradCase{
		{"Where", []device.Shape{{2, 3}, {3}}, -2, 2, func(in variables) *autograd.Variable {
			return autograd.Where(mask(in[0], []uint8{1, 0}, 2, 1), in[0], in[1])
		}},
		{"Where of numbers", []device.Shape{{}, {2, 1}}, -2, 2, func(in variables) *autograd.Variable {
			return autograd.Where(mask(in[0], []uint8{1, 0, 0, 1, 1, 0}, 2, 3), in[0], in[1])
		}},
		one("MaskedFill", func(x *autograd.Variable) *autograd.Variable {
			return autograd.MaskedFill(x, mask(x, []uint8{0, 1, 1}), -7)
		}, 2, 3),
		one("Max", func(x *autograd.Variable) *autograd.Variable { return autograd.Max(x) }, 2, 3),
		one("Max over an axis", func(x *autograd.Variable) *autograd.Variable { return autograd.Max(x, 2, 1, 4) }, 2, 3, 4),
		one("Min over two axes", func(x *autograd.Variable) *autograd.Variable { return autograd.Min(x, 1, 3, 1) }, 2, 3, 4),
	})
}

func TestSelectionParityWithPyTorch(t *testing.T) {
	testkit.Long(t)
	rng := rand.New(rand.NewPCG(7, 8))
	var cases []torchtest.Case
	add := func(expr string, f func(x []*autograd.Variable) *autograd.Variable, in ...torchtest.Input) {
		dt := []device.DType{device.Float64, device.Float32}[len(cases)%2]
		cases = append(cases, torchtest.Case{Name: fmt.Sprint(expr, " of ", in[0].Shape), Expr: expr, In: in, DType: dt, Go: f})
	}
	// few returns numbers of which some are equal and rarely one is NaN.
	few := func(shape ...int) torchtest.Input {
		in := numbers(rng, shape...)
		for i := range in.Numbers {
			if in.Numbers[i] = float64(rng.IntN(7) - 3); rng.IntN(60) == 0 {
				in.Numbers[i] = math.NaN()
			}
		}
		return in
	}
	smaller := func(shape []int) []int {
		small := append([]int{}, shape...)
		for i := range small {
			if rng.IntN(2) == 0 {
				small[i] = 1
			}
		}
		return small[rng.IntN(len(small)+1):]
	}
	comparisons := []struct {
		expr string
		f    func(x, y *autograd.Variable) *autograd.Variable
	}{
		{"==", autograd.Equal}, {"!=", autograd.NotEqual}, {"<", autograd.Less}, {"<=", autograd.LessEqual},
		{">", autograd.Greater}, {">=", autograd.GreaterEqual},
	}
	for i := range parityShapes {
		axes := 1 + rng.IntN(4)
		shape := anyShape(rng, axes)
		c := comparisons[i%len(comparisons)]
		add(fmt.Sprintf("x[0] %s x[1]", c.expr), func(x []*autograd.Variable) *autograd.Variable { return c.f(x[0], x[1]) },
			few(smaller(shape)...), few(shape...))
		add(fmt.Sprintf("torch.where(x[0] %s x[1], x[2], x[3])", c.expr), func(x []*autograd.Variable) *autograd.Variable {
			return autograd.Where(c.f(x[0], x[1]), x[2], x[3])
		}, constant(few(smaller(shape)...)), constant(few(smaller(shape)...)), few(smaller(shape)...), few(smaller(shape)...))
		add("x[0].masked_fill(x[1] > 0, 2.5)", func(x []*autograd.Variable) *autograd.Variable {
			return autograd.MaskedFill(x[0], autograd.Greater(x[1], autograd.Zeros(x[1].Device(), x[1].DType())), 2.5)
		}, few(shape...), constant(few(smaller(shape)...)))

		shape = slices.Clone(shape)
		for j := range shape {
			shape[j] = max(shape[j], 1)
		}
		axis := rng.IntN(axes)
		at := signed(rng, axis, axes)
		add(fmt.Sprintf("x[0].argmax(%d)", at), func(x []*autograd.Variable) *autograd.Variable { return autograd.ArgMax(x[0], at) }, few(shape...))
		add(fmt.Sprintf("x[0].argmin(%d)", at), func(x []*autograd.Variable) *autograd.Variable { return autograd.ArgMin(x[0], at) }, few(shape...))
		to, reduced := append([]int{}, shape...), []int{}
		for j := range to {
			if rng.IntN(2) == 0 || j == axis {
				to[j] = 1
				reduced = append(reduced, j)
			}
		}
		add(fmt.Sprintf("x[0].amax(%s, keepdim=True)", list(reduced)), func(x []*autograd.Variable) *autograd.Variable { return autograd.Max(x[0], to...) }, few(shape...))
		add(fmt.Sprintf("x[0].amin(%s, keepdim=True)", list(reduced)), func(x []*autograd.Variable) *autograd.Variable { return autograd.Min(x[0], to...) }, few(shape...))
		add("x[0].amax()", func(x []*autograd.Variable) *autograd.Variable { return autograd.Max(x[0]) }, few(shape...))
	}
	torchtest.Check(t, cases)
}

// constant returns the input without a gradient.
func constant(in torchtest.Input) torchtest.Input {
	in.Constant = true
	return in
}
