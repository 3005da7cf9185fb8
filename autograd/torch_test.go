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

// randomShapes returns the number of random shapes for which each operation is compared with PyTorch's.
func randomShapes() int {
	if testkit.Race {
		return 40
	}
	return 200
}

// randomShape returns a shape of up to four axes with sizes from 0 to 6, often 1.
func randomShape(rng *rand.Rand) []int {
	shape := make([]int, rng.IntN(5))
	for i := range shape {
		shape[i] = max(rng.IntN(9)-2, 1)
		if rng.IntN(20) == 0 {
			shape[i] = 0
		}
	}
	return shape
}

// randomType returns the type of the n-th case.
func randomType(n int) device.DType {
	if n%4 == 3 {
		return device.Float32
	}
	return device.Float64
}

// randomInput returns numbers from [lo, hi) that are not near 0 and that Float32 represents exactly.
func randomInput(rng *rand.Rand, lo, hi float64, shape ...int) torchtest.Input {
	v := values(rng, device.Shape(shape).Len(), lo, hi)
	for i := range v {
		v[i] = float64(float32(v[i]))
	}
	return torchtest.Input{Shape: shape, Numbers: v}
}

func TestElementwiseIsPyTorchs(t *testing.T) {
	testkit.Long(t)
	rng := rand.New(rand.NewPCG(3, 4))
	var cases []torchtest.Case
	for _, e := range elementwise {
		for n := range randomShapes() {
			in := randomInput(rng, e.lo, e.hi, randomShape(rng)...)
			cases = append(cases, torchtest.Case{
				Name: fmt.Sprintf("%s of %v", e.name, in.Shape), Expr: e.torch, In: []torchtest.Input{in}, DType: randomType(n),
				Go: func(x []*autograd.Variable) *autograd.Variable { return e.f(x[0]) },
			})
		}
	}
	torchtest.Check(t, cases)
}

func TestSoftmaxIsPyTorchs(t *testing.T) {
	testkit.Long(t)
	rng := rand.New(rand.NewPCG(5, 6))
	var cases []torchtest.Case
	for name, f := range map[string]func(*autograd.Variable, int) *autograd.Variable{"softmax": autograd.Softmax, "log_softmax": autograd.LogSoftmax} {
		for n := range randomShapes() {
			in := randomInput(rng, -20, 20, randomShape(rng)...)
			axes := max(len(in.Shape), 1)
			axis := rng.IntN(2*axes) - axes
			cases = append(cases, torchtest.Case{
				Name: fmt.Sprintf("%s of %v along %d", name, in.Shape, axis), Expr: fmt.Sprintf("F.%s(x[0], %d)", name, axis),
				In: []torchtest.Input{in}, DType: randomType(n),
				Go: func(x []*autograd.Variable) *autograd.Variable { return f(x[0], axis) },
			})
		}
	}
	torchtest.Check(t, cases)
}

func TestMatMulIsPyTorchs(t *testing.T) {
	testkit.Long(t)
	rng := rand.New(rand.NewPCG(7, 8))
	var cases []torchtest.Case
	for n := range randomShapes() {
		batch := make([]int, rng.IntN(4))
		for i := range batch {
			batch[i] = 1 + rng.IntN(3)
		}
		broadcast := func() []int {
			lead := append([]int{}, batch[rng.IntN(len(batch)+1):]...)
			for i := range lead {
				if rng.IntN(3) == 0 {
					lead[i] = 1
				}
			}
			return lead
		}
		m, k, cols := rng.IntN(6), rng.IntN(6), rng.IntN(6)
		x, y := randomInput(rng, -2, 2, append(broadcast(), m, k)...), randomInput(rng, -2, 2, append(broadcast(), k, cols)...)
		cases = append(cases, torchtest.Case{
			Name: fmt.Sprintf("MatMul of %v and %v", x.Shape, y.Shape), Expr: "x[0] @ x[1]", In: []torchtest.Input{x, y}, DType: randomType(n), Go: func(x []*autograd.Variable) *autograd.Variable { return autograd.MatMul(x[0], x[1]) },
		})
	}
	torchtest.Check(t, cases)
}
