package torchtest_test

import (
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/torchtest"
)

func TestCheck(t *testing.T) {
	in := []torchtest.Input{{Shape: []int{2, 2}, Numbers: []float64{1, 2, 3, 4}}, {Shape: []int{2}, Numbers: []float64{5, 6}, Constant: true}}
	mul := func(x []*autograd.Variable) *autograd.Variable { return autograd.Mul(x[0], x[1]) }
	torchtest.Check(t, []torchtest.Case{
		{Name: "Mul", Expr: "x[0] * x[1]", In: in, Go: mul},
		{Name: "Mul32", Expr: "x[0] * x[1]", In: in, Go: mul, DType: device.Float32},
		{
			Name: "CrossEntropy", Expr: "F.cross_entropy(x[0], x[1])",
			In: []torchtest.Input{in[0], {Shape: []int{2}, Integers: []int64{1, 0}}},
			Go: func(x []*autograd.Variable) *autograd.Variable { return autograd.CrossEntropyLoss(x[0], x[1]) },
		},
		{
			Name: "Exp of nothing", Expr: "x[0].exp()", In: []torchtest.Input{{Shape: []int{0, 3}}},
			Go: func(x []*autograd.Variable) *autograd.Variable { return autograd.Exp(x[0]) },
		},
	})
}
