package autograd_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
)

// block applies a gated block like Llama's to x [rows d], whose inner size is 2·d. If recompute is set, it keeps neither
// the normalization, nor the gated unit, nor the chain of functions of it. The last three leaves have one axis.
func block(x *autograd.Variable, leaves []*autograd.Variable, recompute bool) *autograd.Variable {
	gate, up, down, last, scale, weight, bias := leaves[0], leaves[1], leaves[2], leaves[3], leaves[4], leaves[5], leaves[6]
	sum, normed := autograd.AddRMSNorm(x, autograd.Mul(x, scale), scale.Shape(), scale, 1e-5)
	h := autograd.SwiGLU(autograd.Linear(normed, gate, nil), autograd.Linear(normed, up, nil))
	sum = autograd.Add(sum, autograd.Linear(h, down, nil))
	again := autograd.LayerNorm(sum, weight.Shape(), weight, bias, 1e-5)
	exp := autograd.Exp(again) // its gradient reads its result
	gelu := autograd.GELU(exp) // its operand is computed again too
	y := autograd.Linear(gelu, last, nil)
	if recompute {
		for _, v := range []*autograd.Variable{normed, h, gelu, exp, again, again} {
			v.Recompute()
		}
	}
	return y
}

func blockLeaves(dev device.Device, d int) (leaves []*autograd.Variable) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, shape := range []device.Shape{{2 * d, d}, {2 * d, d}, {d, 2 * d}, {d, d}, {d}, {d}, {d}} {
		leaves = append(leaves, autograd.FromSlice(dev, values(rng, shape.Len(), -1, 1), shape...).RequireGrad())
	}
	return leaves
}

// Recompute changes no bits of a loss and of the gradients, within and outside of Checkpoints and in each pass through a
// retained graph. It saves exactly the memory of the results, and leaks nothing.
func TestRecompute(t *testing.T) {
	const rows, d = 32, 16 // a result of rows·d elements takes a multiple of the allocator's unit
	type outcome struct {
		grads       [][]float64
		kept, after int64
	}
	run := func(apply part, recompute bool) (o outcome) {
		dev := newDevice(t)
		leaves := blockLeaves(dev, d)
		x := autograd.FromSlice(dev, values(rand.New(rand.NewPCG(3, 4)), rows*d, -1, 1), rows, d)
		before := dev.Memory().InUse
		captured := autograd.Sigmoid(autograd.Linear(x, leaves[3], nil)) // the Checkpoint's function reads it too
		y := apply(func(x *autograd.Variable) *autograd.Variable {
			return autograd.Mul(block(x, leaves, recompute), captured)
		}, autograd.Linear(x, leaves[3], nil))
		if recompute {
			captured.Recompute()
		}
		loss := autograd.Mean(block(y, leaves, recompute))
		o.kept = dev.Memory().InUse - before
		for range 2 {
			mustRetain(t, loss)
			o.after = dev.Memory().InUse - before - o.kept
		}
		mustBackward(t, loss)
		for _, v := range leaves {
			o.grads = append(o.grads, read(t, v.Grad()))
		}
		return o
	}
	const unit = rows * d * 8
	for name, apply := range map[string]part{"plain": plain, "checkpoint": autograd.Checkpoint, "nested": nested} {
		want, got := run(apply, false), run(apply, true)
		if !slices.EqualFunc(got.grads, want.grads, slices.Equal) {
			t.Errorf("%s: the gradients are\n%v\nwant\n%v", name, got.grads, want.grads)
		}
		saved := int64(2*(1+2+3)+1) * unit // in each block, h is twice as large as the other four; and captured
		if name != "plain" {
			saved -= (1 + 2 + 3) * unit // a Checkpoint keeps nothing of the first block anyway
		}
		if want.kept-got.kept != saved {
			t.Errorf("%s: the forward pass keeps %d bytes, %d with Recompute: want %d less", name, want.kept, got.kept, saved)
		}
		if got.after != want.after {
			t.Errorf("%s: passes leave %d bytes, %d without Recompute", name, got.after, want.after)
		}
	}
}

// Recompute keeps what cannot be computed again as it was, and what something else may read.
func TestRecomputeKeeps(t *testing.T) {
	dev := newDevice(t)
	x, frozen := autograd.FromSlice(dev, []float64{1, 2}).RequireGrad(), autograd.FromSlice(dev, []float64{1, 2})
	mustBackward(t, autograd.Sum(autograd.Exp(x)))
	shared := autograd.Exp(x)
	view := autograd.Reshape(shared, 2, 1)
	written := autograd.Exp(x)
	written.BumpVersion()
	ofGradient := autograd.LayerNorm(x, []int{2}, nil, x.Grad(), 1e-5)
	for what, v := range map[string]*autograd.Variable{
		"a leaf": x, "a result without a gradient": autograd.Exp(frozen), "a retained result": autograd.Exp(x).Retain(), "a result with a view": shared,
		"a view": view, "a result that was written": written, "a function of a gradient": ofGradient,
	} {
		v.Recompute()
		if _, err := v.Read(t.Context()); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// Wrong uses panic before a pass has written anything.
func TestRecomputeMisuse(t *testing.T) {
	dev := newDevice(t)
	x := autograd.FromSlice(dev, []float64{1, 2}).RequireGrad()
	if err := panics[*autograd.GraphError](t, func() { autograd.Mul(x, x).Recompute() }); err != nil && !strings.Contains(err.Error(), "Checkpoint") {
		t.Errorf("%v does not say what computes any function again", err)
	}
	h := autograd.Mul(x, x)
	y := autograd.GELU(h)
	loss := autograd.Sum(autograd.Mul(y, x))
	y.Recompute()
	panics[*autograd.FreedError](t, func() { autograd.Exp(y) })
	h.BumpVersion()
	if err := panics[*autograd.ModifiedError](t, func() { loss.Backward(nil) }); err != nil && err.Op != "GELU" {
		t.Errorf("%v does not name the operation that reads what was written", err)
	}
	if x.Grad() != nil {
		t.Error("the pass has written a gradient")
	}
}

// Any failure of a recomputation fails the pass, and leaks nothing.
func TestRecomputeFailures(t *testing.T) {
	dev := newFaulty(t, errors.New("boom"))
	leaves := blockLeaves(dev, 4)
	x := autograd.FromSlice(dev, values(rand.New(rand.NewPCG(3, 4)), 12, -1, 1), 3, 4)
	seen := &watcher{}
	eachFailure(t, dev, leaves, seen, false, 10, func() *autograd.Variable {
		return autograd.Observe(autograd.Mean(block(x, leaves, true)), seen)
	})
}
