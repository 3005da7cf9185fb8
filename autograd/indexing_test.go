package autograd_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/torchtest"
)

func TestIndexingGradients(t *testing.T) {
	index := func(x *autograd.Variable, at []int64, shape ...int) *autograd.Variable {
		return autograd.FromSlice(x.Device(), at, shape...)
	}
	one := func(name string, f func(x *autograd.Variable) *autograd.Variable, shape ...int) gradCase {
		return gradCase{name, []device.Shape{shape}, -2, 2, func(in variables) *autograd.Variable { return f(in[0]) }}
	}
	checkGradients(t, []gradCase{
		one("IndexSelect", func(x *autograd.Variable) *autograd.Variable {
			return autograd.IndexSelect(x, 1, index(x, []int64{2, 0, 2, 2}))
		}, 2, 3, 2),
		one("Embedding", func(x *autograd.Variable) *autograd.Variable {
			return autograd.Embedding(x, index(x, []int64{4, 1, 4, 0, 1, 4}, 2, 3))
		}, 5, 3),
		one("Gather", func(x *autograd.Variable) *autograd.Variable {
			return autograd.Gather(x, -1, index(x, []int64{0, 0, 3, 1, 3, 3}, 3, 2))
		}, 3, 4),
		one("Gather of a part", func(x *autograd.Variable) *autograd.Variable {
			return autograd.Gather(x, 0, index(x, []int64{2, 1, 2, 2, 0, 0}, 3, 2))
		}, 3, 4),
	})
}

// indices returns random indices below n, as an input of a parity case.
func indices(rng *rand.Rand, n int, shape ...int) torchtest.Input {
	at := make([]int64, device.Shape(shape).Len())
	for i := range at {
		at[i] = rng.Int64N(int64(n))
	}
	return torchtest.Input{Shape: shape, Integers: at}
}

func TestIndexingParityWithPyTorch(t *testing.T) {
	testkit.Long(t)
	rng := rand.New(rand.NewPCG(5, 6))
	var cases []torchtest.Case
	add := func(expr string, f func(x []*autograd.Variable) *autograd.Variable, in ...torchtest.Input) {
		dt := []device.DType{device.Float64, device.Float32}[len(cases)%2]
		cases = append(cases, torchtest.Case{Name: fmt.Sprint(expr, " of ", in[0].Shape, in[1].Shape), Expr: expr, In: in, DType: dt, Go: f})
	}
	for range parityShapes {
		axes := 1 + rng.IntN(4)
		shape := anyShape(rng, axes)
		axis := rng.IntN(axes)
		shape[axis] = 1 + rng.IntN(6)
		at := signed(rng, axis, axes)
		add(fmt.Sprintf("x[0].index_select(%d, x[1])", at), func(x []*autograd.Variable) *autograd.Variable {
			return autograd.IndexSelect(x[0], at, x[1])
		}, numbers(rng, shape...), indices(rng, shape[axis], rng.IntN(9)))

		part := append([]int{}, shape...)
		for i := range part {
			part[i] = rng.IntN(part[i] + 1)
		}
		part[axis] = rng.IntN(7)
		add(fmt.Sprintf("x[0].gather(%d, x[1])", at), func(x []*autograd.Variable) *autograd.Variable {
			return autograd.Gather(x[0], at, x[1])
		}, numbers(rng, shape...), indices(rng, shape[axis], part...))

		n := 1 + rng.IntN(20)
		add("F.embedding(x[1], x[0])", func(x []*autograd.Variable) *autograd.Variable { return autograd.Embedding(x[0], x[1]) },
			numbers(rng, n, 1+rng.IntN(9)), indices(rng, n, anyShape(rng, rng.IntN(3))...))
		padding := rng.IntN(n)
		add(fmt.Sprintf("F.embedding(x[1], x[0], %d)", padding), func(x []*autograd.Variable) *autograd.Variable {
			return autograd.Embedding(x[0], x[1], padding)
		}, numbers(rng, n, 1+rng.IntN(9)), indices(rng, n, anyShape(rng, rng.IntN(3))...))
	}
	torchtest.Check(t, cases)
}
