package autograd_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
)

// headed returns a loss of x [m k] through a layer w [n k].
type headed func(x, w, labels *autograd.Variable) *autograd.Variable

var whole headed = func(x, w, labels *autograd.Variable) *autograd.Variable {
	return autograd.CrossEntropyLoss(autograd.Linear(x, w, nil), labels)
}

// The loss and the gradients are those of the whole logits, for one part of the rows and for several. Each
// Backward adds the gradients, multiplied by the gradient of the loss.
func TestLinearCrossEntropyLoss(t *testing.T) {
	dev := newDevice(t)
	rng := rand.New(rand.NewPCG(1, 2))
	for _, c := range []struct{ m, n, k int }{{1, 1, 1}, {7, 5, 3}, {300, 1 << 17, 2}} {
		labels := make([]int64, c.m)
		for i := range labels {
			labels[i] = rng.Int64N(int64(c.n))
		}
		xs, ws := values(rng, c.m*c.k, -1, 1), values(rng, c.n*c.k, -1, 1)
		run := func(loss headed) (l float64, grads [2][]float64) {
			x := autograd.FromSlice(dev, xs, c.m, c.k).RequireGrad()
			w := autograd.FromSlice(dev, ws, c.n, c.k).RequireGrad()
			y := autograd.MulScalar(loss(x, w, autograd.FromLabels(dev, labels)), 3)
			mustBackward(t, y, autograd.RetainGraph)
			mustBackward(t, y)
			return y.Item(), [2][]float64{read(t, x.Grad()), read(t, w.Grad())}
		}
		want, wantGrads := run(whole)
		got, grads := run(autograd.LinearCrossEntropyLoss)
		if math.Abs(got-want) > 1e-12*math.Abs(want) {
			t.Errorf("%v: the loss is %v, want %v", c, got, want)
		}
		for i, of := range wantGrads {
			var most float64
			for _, v := range of {
				most = max(most, math.Abs(v))
			}
			for j, v := range of {
				if math.Abs(grads[i][j]-v) > 1e-12*most {
					t.Fatalf("%v: element %d of gradient %d is %v, want %v", c, j, i, grads[i][j], v)
				}
			}
		}
	}
}

// Logits and their gradient never exist as a whole.
func TestLinearCrossEntropyLossTakesLittleMemory(t *testing.T) {
	const m, n = 1 << 10, 1 << 17
	most := func(loss headed) int64 {
		dev := newDevice(t)
		x := autograd.Zeros(dev, device.Float32, m, 1).RequireGrad()
		w := autograd.Zeros(dev, device.Float32, n, 1).RequireGrad()
		mustBackward(t, loss(x, w, autograd.Zeros(dev, device.Int64, m)))
		return dev.Memory().Peak
	}
	if got, logits := most(autograd.LinearCrossEntropyLoss), int64(4*m*n); got > logits/4 {
		t.Errorf("%d bytes in use, and logits would take %d", got, logits)
	}
}

// The mean over no rows is NaN, and its gradients are zeros. A loss without gradients can be computed, and a
// matrix that was frozen then gets none later.
func TestLinearCrossEntropyLossOfNothing(t *testing.T) {
	dev := newDevice(t)
	x, w := autograd.Zeros(dev, device.Float64, 0, 2).RequireGrad(), autograd.Zeros(dev, device.Float64, 3, 2).RequireGrad()
	loss := autograd.LinearCrossEntropyLoss(x, w, autograd.FromLabels(dev, nil))
	mustBackward(t, loss)
	if l := loss.Item(); l == l {
		t.Errorf("the loss of no rows is %v", l)
	}
	near(t, "the gradient of a loss of nothing", read(t, w.Grad()), make([]float64, 6), 0)
	x = autograd.FromSlice(dev, []float64{1, 2}, 1, 2).RequireGrad()
	autograd.NoGrad(dev, func() {
		if l := autograd.LinearCrossEntropyLoss(x, w, autograd.FromLabels(dev, []int64{1})).Item(); math.Abs(l-math.Log(3)) > 1e-15 {
			t.Errorf("without a graph the loss is %v, want %v", l, math.Log(3))
		}
	})
	w.Freeze()
	loss = autograd.LinearCrossEntropyLoss(x, w, autograd.FromLabels(dev, []int64{1}))
	w.RequireGrad()
	if err := loss.Backward(); err == nil {
		t.Error("a matrix that was frozen got a gradient")
	}
}
