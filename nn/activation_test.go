package nn_test

import (
	"slices"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/torchtest"
	"github.com/goddp/goddp/nn"
)

// Activations with PyTorch's default parameters equal PyTorch's modules.
func TestActivationsArePyTorchs(t *testing.T) {
	testkit.Long(t)
	x := torchtest.Input{Shape: []int{3, 4}, Numbers: []float64{-30, -3, -1, -0.5, 0, 0.25, 0.5, 1, 2, 4, 19, 40}}
	var cases []torchtest.Case
	for expr, m := range map[string]nn.Module{
		"torch.nn.ReLU()": nn.ReLU(), "torch.nn.GELU()": nn.GELU(), "torch.nn.GELU('tanh')": nn.GELUTanh(), "torch.nn.Tanh()": nn.Tanh(),
		"torch.nn.Sigmoid()": nn.Sigmoid(), "torch.nn.LogSigmoid()": nn.LogSigmoid(), "torch.nn.SiLU()": nn.SiLU(),
		"torch.nn.LeakyReLU()": nn.LeakyReLU(0.01), "torch.nn.ELU()": nn.ELU(1), "torch.nn.Softplus()": nn.Softplus(1),
		"torch.nn.Softmax(-1)": nn.Softmax(-1), "torch.nn.LogSoftmax(0)": nn.LogSoftmax(0),
	} {
		cases = append(cases, torchtest.Case{
			Name: expr, Expr: expr + "(x[0])", In: []torchtest.Input{x},
			Go: func(x []*autograd.Variable) *autograd.Variable { return m.Forward(x[0]) },
		})
	}
	torchtest.Check(t, cases)
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
