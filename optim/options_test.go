package optim_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// Options that cannot be used are an OptionError, which changes nothing.
func TestOptionsThatAreRefused(t *testing.T) {
	dev := newDevice(t)
	nan := math.NaN()
	p, matrix := parameter(dev, "p", []float64{1}), parameter(dev, "matrix", []float64{1}, 1, 1)
	half, _ := typed(t, dev, "half", device.BFloat16, device.BFloat16, 3)
	ps := []*nn.Parameter{p}
	for _, o := range []optim.SGDOptions{
		{LR: -1}, {LR: nan}, {Momentum: -0.1}, {WeightDecay: -1}, {LR: 1, Nesterov: true}, {LR: 1, Momentum: 0.9, Dampening: 0.1, Nesterov: true},
	} {
		_, err := optim.NewSGD(ps, &o)
		refused(t, fmt.Sprintf("%+v", o), err)
	}
	for _, o := range []optim.AdamWOptions{
		{LR: -1}, {LR: nan}, {Eps: -1}, {WeightDecay: -1}, {Betas: [2]float64{1, 0.9}}, {Betas: [2]float64{0.9, -0.1}}, {MomentDType: device.Float16},
	} {
		_, err := optim.NewAdamW(ps, &o)
		refused(t, fmt.Sprintf("%+v", o), err)
	}
	for _, o := range []optim.RMSPropOptions{{LR: -1}, {Alpha: 1.1}, {Alpha: nan}, {Eps: -1}, {Momentum: -1}, {WeightDecay: nan}} {
		_, err := optim.NewRMSProp(ps, &o)
		refused(t, fmt.Sprintf("%+v", o), err)
	}
	for _, o := range []optim.MuonOptions{{LR: -1}, {Momentum: 1}, {Momentum: -0.1}, {WeightDecay: nan}} {
		_, err := optim.NewMuon([]*nn.Parameter{matrix}, &o)
		refused(t, fmt.Sprintf("%+v", o), err)
	}
	for _, d := range []float64{1, -0.5, nan} {
		_, err := optim.NewEMA(holder{}, must.New(optim.NewSGD(nil, nil)), &optim.EMAOptions{Decay: d})
		refused(t, fmt.Sprint("decay ", d), err)
	}
	for what, make := range map[string]func() error{
		"SGD of a parameter twice":   func() error { _, err := optim.NewSGD([]*nn.Parameter{p, p}, nil); return err },
		"AdamW of a parameter twice": func() error { _, err := optim.NewAdamW([]*nn.Parameter{p, p}, nil); return err },
		"Muon of a vector":           func() error { _, err := optim.NewMuon(ps, nil); return err },
		"a parameter in two groups": func() error {
			_, err := optim.NewMuon([]*nn.Parameter{matrix}, nil, optim.AdamWGroup{Params: []*nn.Parameter{matrix}})
			return err
		},
		"clipping to a max of 0":     func() error { _, err := optim.ClipGradNorm(ps, 0, nil); return err },
		"clipping by a norm of -1":   func() error { _, err := optim.ClipGradNorm(ps, 1, &optim.ClipOptions{NormType: -1}); return err },
		"clipping nothing":           func() error { _, err := optim.ClipGradNorm(nil, 1, nil); return err },
		"clipping to values below 0": func() error { return optim.ClipGradValue(ps, -1) },
		"SGD's masters that come late": func() error {
			opt := must.New(optim.NewSGD([]*nn.Parameter{half}, &optim.SGDOptions{LR: 1}))
			opt.Groups()[0].MasterWeights = true
			return opt.Step()
		},
		"AdamW's masters that come late": func() error {
			opt := must.New(optim.NewAdamW([]*nn.Parameter{half}, &optim.AdamWOptions{LR: 1}))
			opt.Groups()[0].MasterWeights = true
			return opt.Step()
		},
		"AdamW's moments of another type": func() error {
			opt := must.New(optim.NewAdamW([]*nn.Parameter{half}, &optim.AdamWOptions{LR: 1}))
			opt.Groups()[0].MomentDType = device.BFloat16
			return opt.Step()
		},
		"a negative rate set later": func() error {
			opt := must.New(optim.NewSGD(ps, &optim.SGDOptions{LR: 1}))
			opt.SetLR(-1)
			return opt.Step()
		},
	} {
		refused(t, what, make())
	}
	if got := read(t, p.Var()); !slices.Equal(got, []float64{1}) {
		t.Errorf("the parameter became %v", got)
	}
}
