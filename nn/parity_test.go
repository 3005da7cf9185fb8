package nn_test

import (
	"encoding/json"
	"math"
	"os"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// training is PyTorch's training, recorded by testdata/mlp.py.
type training struct {
	Losses     []float64
	FirstGrads [][]float64
}

// A network trained from the same weights has PyTorch's losses and gradients.
func TestParityWithPyTorch(t *testing.T) {
	file, err := os.ReadFile("testdata/mlp.json")
	if err != nil {
		t.Fatal(err)
	}
	var want struct {
		LR, Momentum, WeightDecay float64
		X, Y                      []float64
		Labels                    []int64
		Params                    []struct {
			Name  string
			Shape []int
			Data  []float64
		}
		MSELoss, CrossEntropyLoss training
	}
	if err := json.Unmarshal(file, &want); err != nil {
		t.Fatal(err)
	}
	dev := newDevice(t, cpu.Options{})
	x := autograd.FromSlice(dev, want.X, len(want.Labels), 5)
	y := autograd.FromSlice(dev, want.Y, len(want.Labels), 3)
	labels := autograd.FromSlice(dev, want.Labels)

	run := func(name string, want64 training, loss func(pred *autograd.Variable) *autograd.Variable) {
		f64 := nn.LinearOptions{DType: device.Float64}
		net := nn.Sequential(nn.Linear(5, 7, &f64), nn.ReLU(), nn.Linear(7, 7, &f64), nn.ReLU(), nn.Linear(7, 3, &f64))
		if err := nn.Place(net, dev, 0); err != nil {
			t.Fatal(err)
		}
		for i, p := range net.Parameters() {
			from := want.Params[i]
			if p.Name() != from.Name || !p.Shape().Equal(from.Shape) {
				t.Fatalf("parameter %d is %v, PyTorch's %s %v", i, p, from.Name, from.Shape)
			}
			copy(device.Elements[float64](p.Var().Tensor()), from.Data)
		}
		opt := must.New(optim.NewSGD(net.Parameters(), &optim.SGDOptions{LR: want.LR, Momentum: want.Momentum, WeightDecay: want.WeightDecay}))
		for step, loss64 := range want64.Losses {
			opt.ZeroGrad()
			l := loss(net.Forward(x))
			if err := l.Backward(nil); err != nil {
				t.Fatal(err)
			}
			if got := l.Item(); !(math.Abs(got-loss64) <= 1e-9) {
				t.Errorf("%s, step %d: %v, PyTorch has %v", name, step, got, loss64)
			}
			for i, p := range net.Parameters() {
				if step > 0 {
					break
				}
				for j, got := range read(t, p.Grad()) {
					if g := want64.FirstGrads[i][j]; !(math.Abs(got-g) <= 1e-9) {
						t.Fatalf("%s, gradient of %s, element %d: %v, PyTorch has %v", name, p.Name(), j, got, g)
					}
				}
			}
			if err := opt.Step(); err != nil {
				t.Fatal(err)
			}
		}
	}
	run("MSELoss", want.MSELoss, func(pred *autograd.Variable) *autograd.Variable { return nn.MSELoss(pred, y, nil) })
	run("CrossEntropyLoss", want.CrossEntropyLoss, func(pred *autograd.Variable) *autograd.Variable {
		return nn.CrossEntropyLoss(pred, labels, nil)
	})
}
