package optim_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// steps returns the number of steps that opt committed.
func steps(opt *optim.SGD) int {
	n, _ := opt.Committed()
	return n
}

func TestGroups(t *testing.T) {
	dev := newDevice(t)
	a, b := parameter(dev, "a", []float64{1}), parameter(dev, "b", []float64{1})
	opt := must.New(optim.NewSGD([]*nn.Parameter{a}, &optim.SGDOptions{LR: 0.5},
		optim.SGDGroup{Params: []*nn.Parameter{b}, SGDOptions: optim.SGDOptions{LR: 0.25, WeightDecay: 1}}))
	step := func(wantA, wantB float64) {
		t.Helper()
		opt.ZeroGrad()
		give(t, a, []float64{1})
		give(t, b, []float64{1})
		if err := opt.Step(); err != nil {
			t.Fatal(err)
		}
		near(t, "a, b", []float64{a.Item(), b.Item()}, []float64{wantA, wantB})
	}
	step(0.5, 0.5)
	opt.Groups()[0].LR = 1
	step(-0.5, 0.125)
	opt.SetLR(0)
	step(-0.5, 0.125)
}

// A variable with several names in one group is updated once. In two groups it is an error, whether
// or not it has been placed on a device.
func TestParametersUnderSeveralNames(t *testing.T) {
	dev := newDevice(t)
	tied := autograd.FromSlice(dev, []float64{1})
	embed, head := nn.NewParameter("embed", tied), nn.NewParameter("head", tied)
	for name, opt := range map[string]interface {
		Parameters() []*nn.Parameter
		Step() error
	}{
		"SGD":   must.New(optim.NewSGD([]*nn.Parameter{embed, head}, &optim.SGDOptions{LR: 0.5})),
		"AdamW": must.New(optim.NewAdamW([]*nn.Parameter{embed, head}, &optim.AdamWOptions{LR: 0.5, Eps: 1e-20})),
	} {
		if ps := opt.Parameters(); !slices.Equal(ps, []*nn.Parameter{embed}) {
			t.Errorf("%s: tied weights are %v, want them once", name, ps)
		}
		put(t, dev, tied.Tensor(), 1)
		give(t, embed, []float64{1})
		if err := opt.Step(); err != nil {
			t.Fatal(err)
		}
		near(t, name, read(t, tied), []float64{0.5})
		tied.ZeroGrad()
	}

	for _, place := range []bool{false, true} {
		layer := nn.Linear(1, 1, nil)
		model := nn.Sequential(layer)
		if place {
			if err := nn.Place(model, dev, 1); err != nil {
				t.Fatal(err)
			}
		}
		_, err := optim.NewSGD(model.Parameters(), nil, optim.SGDGroup{Params: layer.Parameters()})
		refused(t, fmt.Sprintf("two groups with a layer, placed: %v", place), err)
	}
}

// An error of one gradient leaves all parameters unchanged. A raised flag on the device leaves the
// parameters of its sink unchanged.
func TestGradientErrorLeavesParametersUnchanged(t *testing.T) {
	dev := newDevice(t)
	a, b := parameter(dev, "a", []float64{1}), parameter(dev, "b", []float64{1})
	opt := must.New(optim.NewSGD([]*nn.Parameter{a, b}, &optim.SGDOptions{LR: 1, Momentum: 0.9}))
	flag := []byte{0}
	o := &owner{
		t:    device.HostTensor([]float64{0}, device.Invalid),
		skip: device.HostTensor(flag, device.Invalid),
		err:  errors.New("rank 3 has no gradient"),
	}
	o.own(b.Var())
	give(t, a, []float64{1})
	give(t, b, []float64{1})
	if err := opt.Step(); !errors.Is(err, o.err) {
		t.Errorf("Step returned %v, want %v", err, o.err)
	}
	if a.Item() != 1 || b.Item() != 1 || steps(opt) != 0 {
		t.Errorf("a %v, b %v after %d steps; want nothing changed", a.Item(), b.Item(), steps(opt))
	}

	o.err, flag[0] = nil, 2
	if err := opt.Step(); err != nil {
		t.Fatal(err)
	}
	if a.Item() != 0 || b.Item() != 1 {
		t.Errorf("a %v, b %v; want the flag to keep b alone", a.Item(), b.Item())
	}
	if p := must.New(optim.NewSGD([]*nn.Parameter{parameter(dev, "c", []float64{1})}, &optim.SGDOptions{LR: 1})); p.Step() != nil || steps(p) != 0 {
		t.Error("a step without any gradient is committed")
	}
}

// If an outcome is pending when Step is called, Step asks for it after the updates if one set of
// flags covers all gradients, and before them otherwise. After an error, everything is as if Step
// had not been called, or inconsistent.
func TestPendingOutcomes(t *testing.T) {
	lost := errors.New("rank 3 is lost")
	for _, c := range []struct {
		what         string
		flag         byte  // the value of the device's flag
		err          error // the outcome that Err returns
		secondFlags  bool  // the second gradient has other flags, which are not raised
		none         bool  // there are no flags
		inconsistent bool
	}{
		{what: "good"},
		{what: "skipped", flag: 1, err: skipped{}},
		{what: "lost", err: lost, inconsistent: true},
		{what: "flags of their own", flag: 1, err: skipped{}, secondFlags: true},
		{what: "flags of their own, lost", err: lost, secondFlags: true},
		{what: "no flags, lost", err: lost, none: true},
	} {
		t.Run(c.what, func(t *testing.T) {
			dev := newDevice(t)
			var params []*nn.Parameter
			var owners []*owner
			flags := []byte{0}
			for i := range 2 {
				p := parameter(dev, fmt.Sprint("p", i), []float64{1})
				o := &owner{t: device.HostTensor([]float64{1}, device.Invalid), skip: device.HostTensor(flags, device.Invalid)}
				switch {
				case c.none:
					o.skip = device.Tensor{}
				case c.secondFlags && i == 1:
					o.skip = device.HostTensor([]byte{0}, device.Invalid)
				}
				o.own(p.Var())
				params, owners = append(params, p), append(owners, o)
			}
			opt := must.New(optim.NewSGD(params, &optim.SGDOptions{LR: 1, Momentum: 0.5}))
			// The value of the parameters after 0, 1 and 2 successful steps.
			values := []float64{1, 0, -1.5}
			good := 0
			for step := range 3 {
				bad := c.err != nil && step == 0 // in the first step: the velocity must not be initialized
				flags[0] = 0
				for _, o := range owners {
					o.pending, o.err = true, nil
					if bad {
						flags[0], o.err = c.flag, c.err
					}
				}
				err := opt.Step()
				var inconsistent *optim.InconsistentError
				switch {
				case !errors.Is(err, owners[0].err) || errors.As(err, &inconsistent) != (bad && c.inconsistent):
					t.Fatalf("step %d: got %v, want %v, inconsistent: %v", step, err, owners[0].err, c.inconsistent)
				case bad && c.inconsistent:
					if again := opt.Step(); again != err || steps(opt) != 0 {
						t.Errorf("after a inconsistent step: %v, %d steps", again, steps(opt))
					}
					return
				case !bad:
					good++
				}
				if owners[0].pending && owners[1].pending || steps(opt) != good {
					t.Errorf("step %d: the outcome was not asked for, or %d steps are committed, want %d", step, steps(opt), good)
				}
				for _, p := range params {
					if got := p.Item(); good < len(values) && got != values[good] {
						t.Errorf("step %d: %s is %v after %d good steps, want %v", step, p.Name(), got, good, values[good])
					}
				}
			}
		})
	}
}

// The updates begin with the last parameter, whose gradient is reduced first, and that update does
// not wait for large gradients of others.
func TestUpdatesBeginWithTheLastParameter(t *testing.T) {
	dev := newDevice(t)
	p, q := parameter(dev, "p", slices.Repeat([]float64{1}, 1<<19)), parameter(dev, "q", []float64{1})
	late := -1.
	(&owner{t: device.HostTensor(slices.Repeat([]float64{1}, 1<<19), device.Invalid), settle: func() { late = q.Item() }}).own(p.Var())
	(&owner{t: device.HostTensor([]float64{1}, device.Invalid)}).own(q.Var())
	if err := must.New(optim.NewSGD([]*nn.Parameter{p, q}, &optim.SGDOptions{LR: 1})).Step(); err != nil {
		t.Fatal(err)
	}
	values, err := p.Var().Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if late != 0 || values[0] != 0 {
		t.Errorf("q is %v when p's gradient is used, and p is %v in the end; want both 0", late, values[0])
	}
}

// Step asks for a pending outcome even if no parameter has a gradient.
func TestStepAsksForPendingOutcomeWithoutGradients(t *testing.T) {
	p := parameter(newDevice(t), "p", []float64{1})
	o := &owner{pending: true, err: errors.New("rank 3 is lost")}
	o.own(p.Var())
	opt := must.New(optim.NewSGD([]*nn.Parameter{p}, &optim.SGDOptions{LR: 1}))
	for range 2 {
		if err := opt.Step(); !errors.Is(err, o.err) {
			t.Errorf("got %v, want %v", err, o.err)
		}
	}
}

// failing is a device whose SGD kernel fails once left is 0.
type failing struct {
	device.Device
	values kernels.Values
	left   int
}

func (f *failing) Values() *kernels.Values { return &f.values }
func (f *failing) Kernels() device.Kernels { return failingKernels{kernels.Of(f.Device), f} }

type failingKernels struct {
	kernels.Kernels
	f *failing
}

func (k failingKernels) SGD(s device.Stream, steps ...kernels.SGDStep) error {
	if k.f.left--; k.f.left < 0 {
		return errors.New("device lost")
	}
	return k.Kernels.SGD(s, steps...)
}

func TestFailedStepIsInconsistent(t *testing.T) {
	dev := &failing{Device: newDevice(t), left: 3}
	large := make([]float64, 1<<20) // its update is enqueued by itself
	params := []*nn.Parameter{parameter(dev, "a", []float64{1}), parameter(dev, "b", large)}
	opt := must.New(optim.NewSGD(params, &optim.SGDOptions{LR: 1}))
	give(t, params[0], []float64{1})
	give(t, params[1], large)
	if err := opt.Step(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		var inconsistent *optim.InconsistentError
		if err := opt.Step(); !errors.As(err, &inconsistent) || inconsistent.Step != 2 || inconsistent.Updated != 1 || inconsistent.Params != 2 {
			t.Errorf("%v, want step 2 inconsistent at 1 of 2", err)
		}
		dev.left = 2 // the device works again, but the parameters are inconsistent
	}
	committed := func(steps int, whole bool) {
		t.Helper()
		if n, w := opt.Committed(); n != steps || w != whole {
			t.Errorf("%d steps committed, whole: %v; want %d, %v", n, w, steps, whole)
		}
	}
	committed(1, false)
	opt.EndLoad(1)
	committed(1, true)
	if err := opt.Step(); err != nil {
		t.Errorf("after restoring: %v", err)
	}
	committed(2, true)
	opt.BeginLoad()
	committed(2, false)
	var inconsistent *optim.InconsistentError
	if err := opt.Step(); err == nil || errors.As(err, &inconsistent) {
		t.Errorf("while the state is being restored, Step returned %v", err)
	}
	opt.EndLoad(5)
	committed(5, true)
}

// During a step Committed returns false. After the step has committed or was skipped, it returns
// true.
func TestCommittedReturnsFalseDuringStep(t *testing.T) {
	dev := newDevice(t)
	flags := []byte{0}
	p := parameter(dev, "p", []float64{1})
	o := &owner{t: device.HostTensor([]float64{1}, device.Invalid), skip: device.HostTensor(flags, device.Invalid)}
	o.own(p.Var())
	opt := must.New(optim.NewSGD([]*nn.Parameter{p}, &optim.SGDOptions{LR: 1}))
	for i, c := range []struct {
		err   error
		steps int
	}{{nil, 1}, {skipped{}, 1}, {nil, 2}} {
		before, _ := opt.Committed()
		o.pending, o.err = true, c.err
		asked := false
		o.onErr = func() {
			ended := make(chan struct{})
			go func() { // as a watchdog's goroutine does
				defer close(ended)
				if n, whole := opt.Committed(); n != before || whole {
					t.Errorf("within step %d: %d committed, whole: %v", i, n, whole)
				}
			}()
			<-ended
			asked = true
		}
		err := opt.Step()
		if n, whole := opt.Committed(); !errors.Is(err, c.err) || !asked || n != c.steps || !whole {
			t.Errorf("step %d: %v, asked: %v, then %d committed, whole: %v; want %d", i, err, asked, n, whole, c.steps)
		}
	}
}
