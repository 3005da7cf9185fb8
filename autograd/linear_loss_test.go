package autograd_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit"
)

// headed returns a loss of x [m k] through a layer w [n k].
type headed func(x, w, labels *autograd.Variable) *autograd.Variable

var whole headed = func(x, w, labels *autograd.Variable) *autograd.Variable {
	return autograd.CrossEntropyLoss(autograd.Linear(x, w, nil), labels)
}

var inParts headed = func(x, w, labels *autograd.Variable) *autograd.Variable {
	return autograd.LinearCrossEntropyLoss(x, w, labels, nil)
}

var inPlace headed = func(x, w, labels *autograd.Variable) *autograd.Variable {
	return autograd.LinearCrossEntropyLoss(x, w, labels, &autograd.LinearLossOptions{Overwrite: true})
}

// The loss and the gradients are those of the whole logits, for one part of the rows and for several, also if the
// gradient overwrites a result. Each Backward adds the gradients, multiplied by the gradient of the loss.
func TestLinearCrossEntropyLoss(t *testing.T) {
	dev := newDevice(t)
	rng := rand.New(rand.NewPCG(1, 2))
	for _, c := range []struct{ m, n, k int }{{1, 1, 1}, {7, 5, 3}, {129, 1 << 17, 1}} { // the last one has two parts
		if testkit.Race && c.m > 100 {
			continue // one goroutine computes for seconds
		}
		labels := make([]int64, c.m)
		for i := range labels {
			labels[i] = rng.Int64N(int64(c.n))
		}
		xs, ws := values(rng, c.m*c.k, -1, 1), values(rng, c.n*c.k, -1, 1)
		run := func(loss headed) (l float64, grads [2][]float64) {
			x := autograd.FromSlice(dev, xs, c.m, c.k).RequireGrad()
			w := autograd.FromSlice(dev, ws, c.n, c.k).RequireGrad()
			y := autograd.MulScalar(loss(autograd.AddScalar(x, 0.5), w, autograd.FromSlice(dev, labels)), 3)
			if c.m < 100 || testkit.IsLong() {
				mustRetain(t, y)
			}
			mustBackward(t, y)
			return y.Item(), [2][]float64{read(t, x.Grad()), read(t, w.Grad())}
		}
		want, wantGrads := run(whole)
		for name, loss := range map[string]headed{"in parts": inParts, "in place": inPlace} {
			if name == "in parts" && c.m > 100 && !testkit.IsLong() {
				continue // takes half a second
			}
			got, grads := run(loss)
			if math.Abs(got-want) > 1e-12*math.Abs(want) {
				t.Errorf("%v, %s: the loss is %v, want %v", c, name, got, want)
			}
			for i, of := range wantGrads {
				var most float64
				for _, v := range of {
					most = max(most, math.Abs(v))
				}
				for j, v := range of {
					if math.Abs(grads[i][j]-v) > 1e-12*most {
						t.Fatalf("%v, %s: element %d of gradient %d is %v, want %v", c, name, j, i, grads[i][j], v)
					}
				}
			}
		}
	}
}

// Logits and their gradient never exist as a whole.
func TestLinearCrossEntropyLossTakesLittleMemory(t *testing.T) {
	testkit.Long(t)
	const m, n = 1 << 9, 1 << 17
	most := func(loss headed) int64 {
		dev := newDevice(t)
		x := autograd.Zeros(dev, device.Float32, m, 1).RequireGrad()
		w := autograd.Zeros(dev, device.Float32, n, 1).RequireGrad()
		mustBackward(t, loss(x, w, autograd.Zeros(dev, device.Int64, m)))
		return dev.Memory().Peak
	}
	if got, logits := most(inParts), int64(4*m*n); got > logits/2 {
		t.Errorf("%d bytes in use, and logits would take %d", got, logits)
	}
}

// The mean over no rows is NaN, and its gradients are zeros. A loss without gradients can be computed, and a
// matrix that was frozen then gets none later.
func TestLinearCrossEntropyLossOfNothing(t *testing.T) {
	dev := newDevice(t)
	x, w := autograd.Zeros(dev, device.Float64, 0, 2).RequireGrad(), autograd.Zeros(dev, device.Float64, 3, 2).RequireGrad()
	loss := autograd.LinearCrossEntropyLoss(x, w, autograd.FromSlice[int64](dev, nil), nil)
	mustBackward(t, loss)
	if l := loss.Item(); l == l {
		t.Errorf("the loss of no rows is %v", l)
	}
	near(t, "the gradient of a loss of nothing", read(t, w.Grad()), make([]float64, 6), 0)
	x = autograd.FromSlice(dev, []float64{1, 2}, 1, 2).RequireGrad()
	autograd.NoGrad(dev, func() {
		if l := autograd.LinearCrossEntropyLoss(x, w, autograd.FromSlice(dev, []int64{1}), nil).Item(); math.Abs(l-math.Log(3)) > 1e-15 {
			t.Errorf("without a graph the loss is %v, want %v", l, math.Log(3))
		}
	})
	w.Freeze()
	loss = autograd.LinearCrossEntropyLoss(x, w, autograd.FromSlice(dev, []int64{1}), nil)
	w.RequireGrad()
	if err := loss.Backward(nil); err == nil {
		t.Error("a matrix that was frozen got a gradient")
	}
}

// A gradient that overwrites x takes no memory of its own, and the backward pass frees it.
func TestLinearCrossEntropyLossOverwrites(t *testing.T) {
	const m, k = 1 << 8, 1 << 8
	run := func(loss headed) (peak, kept int64) {
		dev := newDevice(t)
		x, w := autograd.Zeros(dev, device.Float32, m, k).RequireGrad(), autograd.Zeros(dev, device.Float32, 3, k)
		mustBackward(t, loss(autograd.AddScalar(x, 1), w, autograd.Zeros(dev, device.Int64, m)))
		return dev.Memory().Peak, dev.Memory().InUse
	}
	peak, kept := run(inParts)
	lessPeak, lessKept := run(inPlace)
	if want := int64(4 * m * k); peak-lessPeak != want || kept-lessKept != want {
		t.Errorf("it saves %d bytes at the peak and %d after the backward pass, want %d of both", peak-lessPeak, kept-lessKept, want)
	}
}

// Memory that is not the loss's to write keeps its values: that of a leaf, of a part of another result, of a
// retained result, of a result from outside a Checkpoint, and all memory if no gradient is computed.
func TestLinearCrossEntropyLossKeeps(t *testing.T) {
	dev := newDevice(t)
	w, labels := autograd.FromSlice(dev, []float64{1, 2, 3, 4}, 2, 2).RequireGrad(), autograd.FromSlice(dev, []int64{1})
	leaf := func() *autograd.Variable { return autograd.FromSlice(dev, []float64{5, 6}, 1, 2).RequireGrad() }
	result := func() *autograd.Variable { return autograd.MulScalar(leaf(), 1) }
	loss := func(x *autograd.Variable) *autograd.Variable { return inPlace(x, w, labels) }
	for name, run := range map[string]func() (x *autograd.Variable){
		"a leaf": func() *autograd.Variable {
			x := leaf()
			mustBackward(t, loss(x))
			return x
		},
		"a part": func() *autograd.Variable {
			x := autograd.Slice(autograd.MulScalar(autograd.FromSlice(dev, []float64{5, 6, 7, 8}, 2, 2).RequireGrad(), 1), 0, 0, 1, 1)
			mustBackward(t, loss(x))
			return x
		},
		"a retained result": func() *autograd.Variable {
			x := result().Retain()
			mustBackward(t, loss(x))
			return x
		},
		"from outside a Checkpoint": func() *autograd.Variable {
			x := result()
			mustBackward(t, autograd.Checkpoint(loss, x))
			return x
		},
		"without a gradient": func() *autograd.Variable {
			x := result()
			autograd.NoGrad(dev, func() { loss(x) })
			return x
		},
	} {
		t.Run(name, func(t *testing.T) { near(t, "x", read(t, run()), []float64{5, 6}, 0) })
	}
	if err := panics[*autograd.ModifiedError](t, func() {
		x := result()
		square := autograd.Sum(autograd.Mul(x, x))
		autograd.Add(square, loss(x)).Backward(nil)
	}); err == nil {
		t.Error("a gradient was computed from x that another had overwritten")
	}
}
