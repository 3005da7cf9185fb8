//go:build cgo && linux

package autograd_test

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// A twoPart model has two layers, of which a step may use only the second.
type twoPart struct {
	first, second nn.Module
	net           nn.Module
	opt           *optim.SGD
	runs          int // how often step has run
}

func newTwoPart(t *testing.T, dev device.Device, change func(m *twoPart)) *twoPart {
	t.Helper()
	m := &twoPart{first: nn.Linear(6, 6), second: nn.Linear(6, 3)}
	m.net = nn.Sequential(m.first, m.second)
	if change != nil {
		change(m)
	}
	err := nn.Place(m.net, dev, 5)
	if err == nil {
		m.opt, err = optim.NewSGD(m.net.Parameters(), &optim.SGDOptions{LR: 0.1})
	}
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *twoPart) step(in ...*autograd.Variable) (*autograd.Variable, error) {
	return m.stepOf(m.net, in)
}

func (m *twoPart) stepOf(part nn.Module, in []*autograd.Variable) (*autograd.Variable, error) {
	m.runs++
	y := part.Forward(in[0])
	loss := autograd.Mean(autograd.Mul(y, y))
	err := loss.Backward()
	if err == nil {
		err = m.opt.Step()
	}
	m.opt.ZeroGrad()
	return loss, err
}

// losses returns those of n calls of step. before is called before each.
func losses(t *testing.T, dev device.Device, n int, step func(in ...*autograd.Variable) (*autograd.Variable, error), before func(n int)) []float64 {
	t.Helper()
	x := autograd.FromSlice(dev, []float32{.1, .2, .3, .4, .5, .6}, 1, 6).Retain()
	var all []float64
	for i := range n {
		if before != nil {
			before(i)
		}
		loss, err := step(x)
		if err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
		all = append(all, loss.Item())
	}
	return all
}

// A captured step trains parameters from the step on in which they are unfrozen, although they were frozen before
// they had a place on the device.
func TestEmulatedUnfreezeIsSeenByCapturedSteps(t *testing.T) {
	dev := openGPU(t)
	freeze := func(m *twoPart) {
		for _, p := range m.first.Parameters() {
			p.Freeze()
		}
	}
	var all [2][]float64
	for i := range all {
		m := newTwoPart(t, dev, freeze)
		step := m.step
		if i == 1 {
			step = autograd.Capture(dev, step, &autograd.CaptureOptions{Required: true})
		}
		all[i] = losses(t, dev, 10, step, func(n int) {
			if n == 6 {
				for _, p := range m.first.Parameters() {
					p.Unfreeze()
				}
			}
		})
	}
	if !slices.Equal(all[0], all[1]) {
		t.Errorf("captured losses %v, want %v", all[1], all[0])
	}
}

// An input that requires a gradient gets it, also after the step was captured.
func TestEmulatedInputOfACapturedStepGetsItsGradient(t *testing.T) {
	dev := openGPU(t)
	w := autograd.FromSlice(dev, []float32{1, 2}).RequireGrad()
	step := autograd.Capture(dev, func(in ...*autograd.Variable) (*autograd.Variable, error) {
		loss := autograd.Sum(autograd.Mul(in[0], w))
		return loss, loss.Backward()
	}, &autograd.CaptureOptions{Log: slog.New(slog.DiscardHandler)})
	for n := range 6 {
		x := autograd.FromSlice(dev, []float32{1, 2})
		if n == 5 {
			x.RequireGrad()
		}
		if _, err := step(x); err != nil {
			t.Fatal(err)
		}
		if n == 5 && x.Grad() == nil {
			t.Error("the input has no gradient")
		}
	}
}

// A parameter that no step uses does not keep a step from being captured.
func TestEmulatedStepWithAnUnusedParameterIsCaptured(t *testing.T) {
	dev := openGPU(t)
	m := newTwoPart(t, dev, nil)
	step := autograd.Capture(dev, func(in ...*autograd.Variable) (*autograd.Variable, error) { return m.stepOf(m.second, in) },
		&autograd.CaptureOptions{Required: true})
	losses(t, dev, 10, step, nil)
	if m.runs != 3 {
		t.Errorf("step ran %d times in 10 calls, want 3: the last one is recorded", m.runs)
	}
}

// unrecorded is the identity. Its backward pass fails while a step is recorded.
type unrecorded struct{ dev device.Device }

var errUnrecorded = errors.New("no memory, as it were")

func (unrecorded) Name() string                         { return "unrecorded" }
func (unrecorded) Shape(in []device.Shape) device.Shape { return in[0] }
func (unrecorded) Forward(c *autograd.Call) error {
	return c.Kernels.Axpby(c.Stream, c.Out, device.Accum{Alpha: 1}, c.In[0])
}

func (f unrecorded) Backward(c *autograd.Call, _ int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	if f.dev.(interface{ Recording() bool }).Recording() {
		return errUnrecorded
	}
	return c.Kernels.Axpby(c.Stream, dst, acc, g)
}

// A recording whose backward pass fails changes nothing: the step runs uncaptured. After eight such recordings in a
// row Capture gives up, and says why.
func TestEmulatedFailedRecordingChangesNothing(t *testing.T) {
	dev := openGPU(t)
	want := losses(t, dev, 12, newTwoPart(t, dev, nil).step, nil)
	m := newTwoPart(t, dev, nil)
	step := func(in ...*autograd.Variable) (*autograd.Variable, error) {
		m.runs++
		y := autograd.Apply(unrecorded{dev}, m.first.Forward(in[0]))
		y = m.second.Forward(y)
		loss := autograd.Mean(autograd.Mul(y, y))
		if err := loss.Backward(); err != nil {
			return nil, err
		}
		err := m.opt.Step()
		m.opt.ZeroGrad()
		return loss, err
	}
	var log strings.Builder
	got := losses(t, dev, 12, autograd.Capture(dev, step, &autograd.CaptureOptions{Log: slog.New(slog.NewTextHandler(&log, nil))}), nil)
	if !slices.Equal(got, want) {
		t.Errorf("losses %v, want %v", got, want)
	}
	if n := strings.Count(log.String(), "steps run uncaptured"); n != 1 || m.runs != 12+8 {
		t.Errorf("%d lines, want one; step ran %d times, want 12 and 8 to be recorded; log:\n%s", n, m.runs, &log)
	}
	strict := autograd.Capture(dev, step, &autograd.CaptureOptions{Required: true})
	for n := range 12 {
		if _, err := strict(autograd.Zeros(dev, device.Float32, 1, 6)); errors.Is(err, errUnrecorded) != (n >= 9) {
			t.Errorf("call %d gave %v, want the error of the recording from the tenth call on", n, err)
		}
	}
}

// A captured step may be a part of a captured step.
func TestEmulatedCaptureWithinCapture(t *testing.T) {
	dev := openGPU(t)
	for _, plain := range []int{0, 4} { // the first calls, in which only the inner step is captured
		t.Run(fmt.Sprint(plain), func(t *testing.T) {
			want := losses(t, dev, 12, newTwoPart(t, dev, nil).step, nil)
			m := newTwoPart(t, dev, nil)
			opts := &autograd.CaptureOptions{Required: true}
			inner := autograd.Capture(dev, func(in ...*autograd.Variable) (*autograd.Variable, error) {
				y := m.net.Forward(in[0])
				loss := autograd.Mean(autograd.Mul(y, y))
				return loss, loss.Backward()
			}, opts)
			outer := func(in ...*autograd.Variable) (*autograd.Variable, error) {
				loss, err := inner(in...)
				if err == nil {
					err = m.opt.Step()
				}
				m.opt.ZeroGrad()
				return loss, err
			}
			captured, n := autograd.Capture(dev, outer, opts), 0
			got := losses(t, dev, 12, func(in ...*autograd.Variable) (*autograd.Variable, error) {
				if n++; n <= plain {
					return outer(in...)
				}
				return captured(in...)
			}, nil)
			if !slices.Equal(got, want) {
				t.Errorf("losses %v, want %v", got, want)
			}
		})
	}
}

// Within Scope a step runs uncaptured, which is an error if capturing is required.
func TestEmulatedCaptureWithinScope(t *testing.T) {
	dev := openGPU(t)
	m := newTwoPart(t, dev, nil)
	for _, required := range []bool{false, true} {
		step := autograd.Capture(dev, m.step, &autograd.CaptureOptions{Required: required})
		for range 4 {
			autograd.Scope(dev, func() {
				if _, err := step(autograd.Zeros(dev, device.Float32, 1, 6)); (err != nil) != required {
					t.Errorf("required %v: %v", required, err)
				}
			})
		}
	}
}

// Where no step can be captured, a step that must be is an error, and another is logged.
func TestCaptureOnTheCPU(t *testing.T) {
	dev := newDevice(t)
	m := newTwoPart(t, dev, nil)
	var log strings.Builder
	losses(t, dev, 5, autograd.Capture(dev, m.step, &autograd.CaptureOptions{Log: slog.New(slog.NewTextHandler(&log, nil))}), nil)
	if n := strings.Count(log.String(), "the device cpu captures no steps"); n != 1 || m.runs != 5 {
		t.Errorf("%d lines, want one; step ran %d times, want 5; log:\n%s", n, m.runs, &log)
	}
	strict := autograd.Capture(dev, m.step, &autograd.CaptureOptions{Required: true})
	if _, err := strict(autograd.Zeros(dev, device.Float32, 1, 6)); err == nil {
		t.Error("no error in the first call, though capturing is required")
	}
}
