package optim_test

import (
	"slices"
	"testing"

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
