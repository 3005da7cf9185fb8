package optim_test

import (
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// The number of updates is part of the state. It is right whenever the program asks for the state,
// and after an evaluation with averages.
func TestAdamWState(t *testing.T) {
	dev := newDevice(t)
	p, q := parameter(dev, "p", []float64{1, 2}), parameter(dev, "q", []float64{3})
	opt := must.New(optim.NewAdamW([]*nn.Parameter{p, q}, &optim.AdamWOptions{LR: 0.1}))
	state := func(want ...float64) {
		t.Helper()
		bufs, err := opt.State()
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		var counts []float64
		for _, b := range bufs {
			names = append(names, b.Name())
			if b.DType() == device.Int64 {
				counts = append(counts, b.Var().Item())
			}
		}
		if all := []string{"p.mean", "p.variance", "p.updates", "q.mean", "q.variance", "q.updates"}; !slices.Equal(names, all) {
			t.Fatalf("the state is %q, want %q", names, all)
		}
		if !slices.Equal(counts, want) {
			t.Errorf("%v updates, want %v", counts, want)
		}
	}
	state(0, 0)
	for n := range 3 {
		give(t, p, []float64{1, 1})
		if n == 1 {
			give(t, q, []float64{1})
		}
		if err := opt.Step(); err != nil {
			t.Fatal(err)
		}
		opt.ZeroGrad()
	}
	opt.BeginLoad() // as EMA.With does, which does not use the state
	opt.EndLoad(3)
	give(t, p, []float64{1, 1})
	if err := opt.Step(); err != nil {
		t.Fatal(err)
	}
	state(4, 1)
	opt.BeginLoad()
	opt.EndLoad(0)
	state(0, 0)
}

// With MomentDType the means are BFloat16, also beside masters. A state with means of the other type loads.
func TestMomentDType(t *testing.T) {
	dev := newDevice(t)
	for _, dt := range []device.DType{device.Float32, device.BFloat16} {
		make := func(moments device.DType) (*optim.AdamW, *owner) {
			p, g := typed(t, dev, "p", dt, dt, 1, 2, 3)
			put(t, dev, g.t, 0.125, 0.25, -0.5)
			return must.New(optim.NewAdamW([]*nn.Parameter{p}, &optim.AdamWOptions{LR: 0.1, MasterWeights: true, MomentDType: moments})), g
		}
		full, _ := make(device.Invalid)
		narrow, _ := make(device.BFloat16)
		for range 3 {
			if err := errors.Join(full.Step(), narrow.Step()); err != nil {
				t.Fatal(err)
			}
		}
		states := map[device.DType]map[string]*autograd.Variable{}
		for want, opt := range map[device.DType]*optim.AdamW{device.Float32: full, device.BFloat16: narrow} {
			state := must.New(optim.State(opt))
			states[want] = saved(t, state)
			for _, name := range []string{"p.mean", "p.variance"} {
				if got := state[name].DType(); got != want {
					t.Errorf("parameter %v: %s is of %v, want %v", dt, name, got, want)
				}
			}
			if m, there := state["p.master"]; there && m.DType() != device.Float32 {
				t.Errorf("the master is of %v", m.DType())
			}
		}
		for name, v := range states[device.Float32] {
			for i, want := range read(t, v) {
				if got := read(t, states[device.BFloat16][name])[i]; math.Abs(got-want) > math.Abs(want)/32 {
					t.Errorf("parameter %v: element %d of %s is %v, %v with means of Float32", dt, i, name, got, want)
				}
			}
		}
		for want, opt := range map[device.DType]*optim.AdamW{device.Float32: full, device.BFloat16: narrow} {
			other := states[device.Float32+device.BFloat16-want]
			if err := optim.LoadState(t.Context(), opt, 3, other); err != nil {
				t.Fatal(err)
			}
			rounded := autograd.Cast(other["p.mean"], want)
			if got := must.New(optim.State(opt))["p.mean"]; got.DType() != want || !slices.Equal(read(t, got), read(t, rounded)) {
				t.Errorf("parameter %v: a mean of %v was loaded as %v", dt, read(t, other["p.mean"]), read(t, got))
			}
			if err := opt.Step(); err != nil {
				t.Error(err)
			}
		}
	}
}
