//go:build cgo && linux

package main

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/decoder"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/internal/testkit/steptest"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// trainSmall makes steps of a small model with bfloat16 parameters, and returns the losses and the parameters as bytes.
func trainSmall(t *testing.T, pg *comm.ProcessGroup, captured bool) ([]byte, error) {
	c := decoder.GPT2Config{Vocab: 17, Positions: 8, Layers: 1, Heads: 2, Hidden: 16, Recompute: decoder.RecomputeBlocks}
	net := must.New(decoder.NewGPT2(c))
	if err := nn.Cast(net, device.BFloat16, nil); err != nil {
		return nil, err
	}
	model, err := ddp.New(net, pg, nil)
	if err != nil {
		return nil, err
	}
	opt, err := newOptimizer(net.Parameters(), 0.1, true)
	if err != nil {
		return nil, err
	}
	inputs := func(n int) []*autograd.Variable {
		opt.SetLR(0.01 / float64(n+1))
		ids, next := steptest.Tokens(pg.Device(), 2, c.Positions, c.Vocab, 7*n+3*pg.Rank())
		return []*autograd.Variable{ids, next}
	}
	return steptest.Run(t.Context(), model.Parameters(), captured, inputs, func(in ...*autograd.Variable) (*autograd.Variable, error) {
		opt.ZeroGrad()
		loss := model.Run(func() *autograd.Variable { return net.Loss(in[0], in[1], nil) })
		if err := loss.Backward(nil); err != nil {
			return nil, err
		}
		if _, err := optim.ClipGradNorm(model.Parameters(), 1, nil); err != nil {
			return nil, err
		}
		return loss, opt.Step()
	})
}

// Captured steps of a model that computes blocks again give the losses and parameters of steps that are not captured,
// bit for bit.
func TestEmulatedCapturedSteps(t *testing.T) {
	testkit.Emulated(t)
	commtest.OnDevices(t, commtest.FakeGPUs(t, 2), nil, func(pg *comm.ProcessGroup) error {
		want, err := trainSmall(t, pg, false)
		if err != nil {
			return err
		}
		got, err := trainSmall(t, pg, true)
		if err == nil && !bytes.Equal(got, want) {
			err = fmt.Errorf("captured steps have the losses and parameters %.80q, want %.80q", got, want)
		}
		return err
	})
}
