package autograd_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
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

// ignored is the label of rows without a label.
var ignored int64 = -100

// The loss of rows of which some are ignored is that of the others, and so are the gradients; those of the ignored
// rows are 0.
func TestLinearCrossEntropyLossIgnores(t *testing.T) {
	dev := newDevice(t)
	rng := rand.New(rand.NewPCG(3, 4))
	const n, k = 7, 3
	for _, supervised := range [][]int64{{}, {4}, {0, 3, 5}, {0, 1, 2, 3, 4, 5}} {
		labels, few := slices.Repeat([]int64{ignored}, 6), make([]int64, len(supervised))
		for i, row := range supervised {
			few[i] = rng.Int64N(n)
			labels[row] = few[i]
		}
		xs, ws := values(rng, 6*k, -1, 1), values(rng, n*k, -1, 1)
		run := func(loss headed) (l float64, grads [2][]float64) {
			x, w := autograd.FromSlice(dev, xs, 6, k).RequireGrad(), autograd.FromSlice(dev, ws, n, k).RequireGrad()
			y := autograd.MulScalar(loss(autograd.AddScalar(x, 0.5), w, autograd.FromSlice(dev, labels)), 3)
			mustRetain(t, y)
			mustBackward(t, y)
			return y.Item(), [2][]float64{read(t, x.Grad()), read(t, w.Grad())}
		}
		for _, sum := range []bool{false, true} {
			want, wantGrads := run(func(x, w, _ *autograd.Variable) *autograd.Variable {
				left := autograd.IndexSelect(x, 0, autograd.FromSlice(dev, supervised))
				l := whole(left, w, autograd.FromSlice(dev, few))
				if sum {
					l = autograd.MulScalar(l, float64(len(few)))
				}
				return l
			})
			if len(few) == 0 {
				if want = math.NaN(); sum {
					want = 0
				}
				wantGrads = [2][]float64{make([]float64, 6*k), make([]float64, n*k)}
			}
			for _, overwrite := range []bool{false, true} {
				what := fmt.Sprintf("labels %v, sum %v, overwrite %v", labels, sum, overwrite)
				got, grads := run(func(x, w, labels *autograd.Variable) *autograd.Variable {
					return autograd.LinearCrossEntropyLoss(x, w, labels, &autograd.LinearLossOptions{IgnoreIndex: &ignored, Sum: sum, Overwrite: overwrite})
				})
				if !(math.Abs(got-want) <= 1e-12) && !(math.IsNaN(got) && math.IsNaN(want)) {
					t.Errorf("%s: the loss is %v, want %v", what, got, want)
				}
				near(t, what+", x", grads[0], wantGrads[0], 1e-12)
				near(t, what+", w", grads[1], wantGrads[1], 1e-12)
			}
		}
	}
	x, w := autograd.Zeros(dev, device.Float32, 3, 2), autograd.Zeros(dev, device.Float32, 4, 2)
	loss := func(maxRows int, labels ...int64) *autograd.Variable {
		return autograd.LinearCrossEntropyLoss(x, w, autograd.FromSlice(dev, labels), &autograd.LinearLossOptions{IgnoreIndex: &ignored, MaxRows: maxRows})
	}
	if err := loss(1, 1, ignored, 2).Err(); err == nil || !strings.Contains(err.Error(), "2 rows are not ignored, want at most MaxRows, 1") {
		t.Errorf("with more labels than MaxRows the error is %v", err)
	}
	if got, want := panicText(func() { loss(0, ignored, 4, 1) }), "LinearCrossEntropyLoss: label 4 of row 1 is not one of the 4 classes, 0 to 3"; got != want {
		t.Errorf("the error is %s, want %s", got, want)
	}
}

// Ignored rows take no memory.
func TestLinearCrossEntropyLossOfFewRowsTakesLittleMemory(t *testing.T) {
	const m, n, k = 128, 1 << 12, 4
	peak := func(opts *autograd.LinearLossOptions) int64 {
		dev := newDevice(t)
		labels := slices.Repeat([]int64{ignored}, m)
		labels[5] = 1
		x, w := autograd.Zeros(dev, device.Float32, m, k).RequireGrad(), autograd.Zeros(dev, device.Float32, n, k)
		mustBackward(t, autograd.LinearCrossEntropyLoss(x, w, autograd.FromSlice(dev, labels), opts))
		return dev.Memory().Peak
	}
	if got := peak(&autograd.LinearLossOptions{IgnoreIndex: &ignored}); got > 4*(2*n*k+m*n/8) {
		t.Errorf("one of %d rows took %d bytes, and the logits of all rows take %d", m, got, 4*m*n)
	}
}

// A captured step has the loss and the gradients of its labels, however many there are up to MaxRows. Beyond, the loss
// is NaN.
func TestEmulatedCapturedLossOfFewRows(t *testing.T) {
	const m, n, k, most = 40, 9, 8, 12
	rng := rand.New(rand.NewPCG(5, 6))
	ws, xs := values(rng, n*k, -1, 1), values(rng, m*k, -1, 1)
	gpu, host := openGPU(t), newDevice(t)
	runs := 0
	on := func(dev device.Device, sum bool) func(labels []int64) []float64 {
		w, table := autograd.FromSlice(dev, ws, n, k).RequireGrad(), autograd.FromSlice(dev, xs, m, k).RequireGrad()
		step := func(in ...*autograd.Variable) (*autograd.Variable, error) {
			runs++
			w.ZeroGrad()
			table.ZeroGrad()
			loss := autograd.LinearCrossEntropyLoss(autograd.AddScalar(table, 0.1), w, in[0], &autograd.LinearLossOptions{IgnoreIndex: &ignored, MaxRows: most, Sum: sum, Overwrite: true})
			return loss, loss.Backward(nil)
		}
		if dev == gpu {
			step = autograd.Capture(dev, step, &autograd.CaptureOptions{Warmup: 1, Required: true})
		}
		return func(labels []int64) []float64 {
			loss, err := step(autograd.FromSlice(dev, labels))
			if err != nil {
				t.Fatal(err)
			}
			return slices.Concat(read(t, loss), read(t, w.Grad()), read(t, table.Grad()))
		}
	}
	labels := func(supervised int) []int64 {
		l := slices.Repeat([]int64{ignored}, m)
		for _, i := range rng.Perm(m)[:supervised] {
			l[i] = rng.Int64N(n)
		}
		return l
	}
	for _, sum := range []bool{false, true} {
		captured, want := on(gpu, sum), on(host, sum)
		runs = 0
		for _, supervised := range []int{3, most, 1, 7, 5} {
			l := labels(supervised)
			near(t, fmt.Sprintf("sum %v, %d labels", sum, supervised), captured(l), want(l), 1e-12)
		}
		if loss := captured(labels(most + 1))[0]; loss == loss {
			t.Errorf("the loss of more labels than MaxRows is %v, want NaN", loss)
		}
		if runs != 2+5 {
			t.Errorf("the step ran %d times, want 5 on the host, and once and once captured on the GPU", runs)
		}
	}
}
