package nn_test

import (
	"math"
	"slices"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/nn"
)

// Activations have PyTorch's default parameters.
func TestActivations(t *testing.T) {
	dev := newDevice(t, cpu.Options{})
	data := []float64{-30, -3, -1, -0.5, 0, 0.25, 0.5, 1, 2, 4, 19, 40}
	exp, tanh := math.Exp, math.Tanh
	each := func(f func(x float64) float64) (want []float64) {
		for _, x := range data {
			want = append(want, f(x))
		}
		return want
	}
	sigmoid := func(x float64) float64 { return 1 / (1 + exp(-x)) }
	softmax := each(exp)
	for row := range 3 {
		sum := softmax[4*row] + softmax[4*row+1] + softmax[4*row+2] + softmax[4*row+3]
		for i := range 4 {
			softmax[4*row+i] /= sum
		}
	}
	columns := each(func(x float64) float64 { return x })
	for i := range 4 {
		sum := math.Log(exp(data[i]) + exp(data[4+i]) + exp(data[8+i]))
		columns[i], columns[4+i], columns[8+i] = columns[i]-sum, columns[4+i]-sum, columns[8+i]-sum
	}
	for name, c := range map[string]struct {
		m    nn.Module
		want []float64
	}{
		"ReLU":       {nn.ReLU(), each(func(x float64) float64 { return max(x, 0) })},
		"GELU":       {nn.GELU(), each(func(x float64) float64 { return x / 2 * math.Erfc(-x/math.Sqrt2) })},
		"GELUTanh":   {nn.GELUTanh(), each(func(x float64) float64 { return x / 2 * (1 + tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x))) })},
		"Tanh":       {nn.Tanh(), each(tanh)},
		"Sigmoid":    {nn.Sigmoid(), each(sigmoid)},
		"LogSigmoid": {nn.LogSigmoid(), each(func(x float64) float64 { return math.Log(sigmoid(x)) })},
		"SiLU":       {nn.SiLU(), each(func(x float64) float64 { return x * sigmoid(x) })},
		"LeakyReLU":  {nn.LeakyReLU(0.01), each(func(x float64) float64 { return max(x, 0.01*x) })},
		"ELU":        {nn.ELU(1), each(func(x float64) float64 { return max(x, exp(min(x, 0))-1) })},
		"Softplus":   {nn.Softplus(1), each(func(x float64) float64 { return math.Log1p(exp(x)) })},
		"Softmax":    {nn.Softmax(-1), softmax},
		"LogSoftmax": {nn.LogSoftmax(0), columns},
	} {
		near(t, name, read(t, c.m.Forward(autograd.FromSlice(dev, data, 3, 4))), c.want, 1e-8) // Softplus is x from 20 on, as PyTorch's
	}
}

// Dropout drops elements in training only.
func TestDropoutModes(t *testing.T) {
	dev := newDevice(t, cpu.Options{})
	net := nn.Sequential(nn.Dropout(0.5))
	x := autograd.FromSlice(dev, slices.Repeat([]float64{1}, 64))
	drops := func() bool { return slices.Contains(read(t, net.Forward(x)), 0) }
	if !drops() {
		t.Error("nothing is dropped in training")
	}
	nn.Eval(net)
	if drops() {
		t.Error("an evaluation drops")
	}
	nn.Train(net)
	if !drops() {
		t.Error("nothing is dropped in training after an evaluation")
	}
}
