package autograd_test

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
)

// A step ends at the first operation after a Backward that uses nothing made in the step, and not
// earlier.
func TestStepEnds(t *testing.T) {
	dev := newDevice(t)
	x := autograd.Scalar(dev, 3)
	w := autograd.Scalar(dev, 2).RequireGrad()
	var kept *autograd.Variable
	for range 2 {
		y := autograd.Mul(w, x)
		loss := autograd.Mul(y, y).SetName("loss")
		before := autograd.Mul(x, x) // uses nothing of the step, but there was no Backward yet
		mustBackward(t, loss)
		after := autograd.Sub(y, x) // uses y: part of the step
		if loss.Item() != 36 || y.Item() != 6 || after.Item() != 3 || before.Item() != 9 {
			t.Fatalf("after Backward: loss %v, y %v, y-x %v, x² %v, want 36, 6, 3, 9", loss.Item(), y.Item(), after.Item(), before.Item())
		}
		autograd.Mul(w.Grad(), w.Grad())                    // uses gradients of the step
		autograd.Neg(autograd.Reshape(w.Grad(), 1))         // uses a view of them
		autograd.Neg(w.Grad().Detach())                     // uses another handle to them
		autograd.NoGrad(dev, func() { autograd.Mul(x, x) }) // belongs to the scope of NoGrad
		if loss.Item() != 36 {
			t.Fatal("an evaluation ended the step")
		}

		kept = autograd.Reshape(after, 1).Detach().Retain()
		autograd.Sqrt(x) // ends the step
		err := panics[*autograd.FreedError](t, func() { loss.Item() })
		for _, part := range []string{`Mul "loss"`, "made in step", "when step", "began at Sqrt", "Retain"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q does not say %q", err, part)
			}
		}
		panics[*autograd.FreedError](t, func() { autograd.Add(y, x) })
		if kept.Item() != 3 || after.Item() != 3 {
			t.Errorf("what was retained reads %v, and through the other handle %v, want 3", kept.Item(), after.Item())
		}
	}
	// A retained result does not belong to a step.
	mustBackward(t, autograd.Mul(w, x))
	y := autograd.Mul(w, kept)
	mustBackward(t, y)
	autograd.Neg(kept)
	panics[*autograd.FreedError](t, func() { y.Item() })
}

func TestScopes(t *testing.T) {
	dev := newDevice(t)
	x := autograd.Scalar(dev, 3).RequireGrad()
	mustBackward(t, x) // allocates the gradient
	outside := autograd.Neg(x)
	var inside, kept *autograd.Variable
	use := dev.Memory().InUse
	autograd.Scope(dev, func() {
		inside = autograd.Mul(x, outside)
		kept = autograd.MulScalar(inside, 2).Retain()
		autograd.NoGrad(dev, func() {
			if autograd.Neg(x).RequiresGrad() {
				t.Error("recorded in NoGrad")
			}
		})
		graph := autograd.Neg(x)
		if !graph.RequiresGrad() {
			t.Error("not recorded after NoGrad")
		}
		mustBackward(t, graph)
	})
	autograd.Neg(x).Free() // starts no step, because the Backward ran in a Scope
	if err := panics[*autograd.FreedError](t, func() { inside.Tensor() }); !strings.Contains(err.Error(), "when its scope ended") {
		t.Errorf("%v does not say where", err)
	}
	if outside.Item() != -3 || kept.Item() != -18 {
		t.Errorf("outside %v, kept %v, want -3 and -18", outside.Item(), kept.Item())
	}
	// Retain keeps the value but not its graph.
	panics[*autograd.FreedError](t, func() { kept.Backward(nil) })
	kept.Free()
	kept.Free()
	if got := dev.Memory().InUse; got != use {
		t.Errorf("%d bytes in use, %d before", got, use)
	}
	if err := panics[*autograd.FreedError](t, func() { kept.Retain() }); !strings.Contains(err.Error(), "by Free") {
		t.Errorf("%v does not say how", err)
	}
}

// A pass goes through a result that Free freed, unless a gradient reads it.
func TestBackwardThroughAFreedResult(t *testing.T) {
	dev := newDevice(t)
	x := autograd.Scalar(dev, 3).RequireGrad()
	unread := autograd.Mul(x, x)
	y := autograd.Add(unread, x)
	unread.Free()
	mustBackward(t, y)
	if got := x.Grad().Item(); got != 7 {
		t.Errorf("the gradient is %v, want 7", got)
	}
	for name, then := range map[string]func(read *autograd.Variable) *autograd.Variable{
		"operand": func(read *autograd.Variable) *autograd.Variable { return autograd.Mul(read, x) },
		"result":  func(read *autograd.Variable) *autograd.Variable { return autograd.Add(read, x) },
	} {
		read := autograd.Exp(x)
		y = then(read)
		read.Free()
		if err := panics[*autograd.FreedError](t, func() { y.Backward(nil) }); !strings.Contains(err.Error(), "by Free") {
			t.Errorf("%s: %v does not say how", name, err)
		}
	}
}

// A panic ends a Scope, and NoGrad as well.
func TestScopeEndsByPanic(t *testing.T) {
	dev := newDevice(t)
	x := autograd.Scalar(dev, 3).RequireGrad()
	use := dev.Memory().InUse
	panics[*device.ShapeError](t, func() {
		autograd.NoGrad(dev, func() { autograd.Reshape(autograd.Neg(x), 7) })
	})
	if got := dev.Memory().InUse; got != use {
		t.Errorf("%d bytes in use, %d before", got, use)
	}
	if !autograd.Neg(x).RequiresGrad() {
		t.Error("nothing is recorded any more")
	}
}

// Unreachable leaves are freed if the device is out of memory.
func TestDroppedLeavesAreFreed(t *testing.T) {
	const size = 1 << 20
	data := make([]float32, size/4)
	dev := cpu.New(&cpu.Options{Threads: 1, MemoryLimit: 5 * size})
	defer dev.Close()
	for range 16 {
		if err := autograd.FromSlice(dev, data).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// A program that frees its leaves itself, and does not hold more memory than before, never runs the
// garbage collector for them.
func TestFreedLeavesNeedNoCollector(t *testing.T) {
	dev := newDevice(t)
	data := make([]float32, 1<<18)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 32 {
		autograd.FromSlice(dev, data).Free()
	}
	runtime.ReadMemStats(&after)
	if n := after.NumForcedGC - before.NumForcedGC; n > 0 {
		t.Errorf("the collector was asked to run %d times", n)
	}
}

// A leaf is not freed while an operation uses it for the last time.
func TestLeafLivesThroughItsLastUse(t *testing.T) {
	dev := newDevice(t)
	w := autograd.FromSlice(dev, []float64{1, 2}).RequireGrad()
	for range 20 {
		y := autograd.Mul(w, autograd.FromSlice(dev, []float64{3, 4}))
		runtime.GC()
		autograd.FromSlice(dev, []float64{-1, -1}) // would reuse a freed leaf's memory
		mustBackward(t, autograd.Sum(y))
		near(t, "gradient", read(t, w.Grad()), []float64{3, 4}, 0)
		w.ZeroGrad()
	}
}

// A backward pass frees what operations have kept beside their results. A pass that retains the graph frees
// nothing of it.
func TestBackwardFreesWhatItHasRead(t *testing.T) {
	dev := newDevice(t)
	const layers, rows, width, hidden = 6, 8, 16, 1024
	kept := int64(2 * rows * hidden * 8) // by a FeedForward: the operand and the result of its GELU
	rng := rand.New(rand.NewPCG(1, 2))
	weight := func(n, k int) *autograd.Variable {
		return autograd.FromSlice(dev, values(rng, n*k, -0.1, 0.1), n, k).RequireGrad()
	}
	x, w1, w2 := weight(rows, width), weight(hidden, width), weight(width, hidden)
	gradients := func() (all [][]float64) {
		for _, v := range []*autograd.Variable{x, w1, w2} {
			all = append(all, read(t, v.Grad()))
			v.ZeroGrad()
		}
		return all
	}
	forward := func() *autograd.Variable {
		y := x
		for range layers {
			y = autograd.FeedForward(y, w1, nil, w2, nil, nil)
		}
		return autograd.Sum(y)
	}
	mustBackward(t, forward()) // allocates the gradients
	want := gradients()

	loss := forward()
	before := dev.Memory()
	mustRetain(t, loss)
	if after := dev.Memory(); after.InUse != before.InUse {
		t.Errorf("a pass that retains the graph left %d bytes in use, want %d", after.InUse, before.InUse)
	}
	if got := gradients(); !slices.EqualFunc(got, want, slices.Equal) {
		t.Error("the gradients of a retained graph are others")
	}
	mustBackward(t, loss)
	if after := dev.Memory(); after.InUse > before.InUse-layers*kept {
		t.Errorf("a pass left %d of %d bytes in use, want %d less", after.InUse, before.InUse, layers*kept)
	}
	if got := gradients(); !slices.EqualFunc(got, want, slices.Equal) {
		t.Error("the gradients of the second pass are others")
	}
}
