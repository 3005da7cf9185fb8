//go:build cgo && linux

package main

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/commtest"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// trainSmall makes steps of a small model with bfloat16 parameters, and returns the losses and the parameters.
func trainSmall(t *testing.T, pg *comm.ProcessGroup, c config, captured bool) (losses []float64, state []byte, err error) {
	const batch, steps = 2, 8
	ctx, dev := t.Context(), pg.Device()
	net := newGPT(c)
	if err := nn.Cast(net, device.BFloat16); err != nil {
		return nil, nil, err
	}
	model, err := ddp.New(net, pg, nil)
	if err != nil {
		return nil, nil, err
	}
	opt, err := newOptimizer(net.Parameters(), 0.1, true)
	if err != nil {
		return nil, nil, err
	}
	runs := 0
	step := func(in ...*autograd.Variable) (*autograd.Variable, error) {
		runs++
		opt.ZeroGrad()
		loss := model.Run(func() *autograd.Variable { return net.loss(in[0], in[1]) })
		if err := loss.Backward(); err != nil {
			return nil, err
		}
		if _, err := optim.ClipGradNorm(model.Parameters(), 1); err != nil {
			return nil, err
		}
		return loss, opt.Step()
	}
	if captured {
		step = autograd.Capture(dev, step, &autograd.CaptureOptions{Required: true})
	}
	for n := range steps {
		ids := make([]int64, batch*(c.context+1))
		for i := range ids {
			ids[i] = int64((i*i + 7*n + 3*pg.Rank()) % c.vocab)
		}
		opt.SetLR(0.01 / float64(n+1))
		in := autograd.Reshape(autograd.FromLabels(dev, ids[:batch*c.context]), batch, c.context)
		next := autograd.Reshape(autograd.FromLabels(dev, ids[1:1+batch*c.context]), batch, c.context)
		loss, err := step(in, next)
		if err != nil {
			return nil, nil, fmt.Errorf("step %d: %w", n, err)
		}
		losses = append(losses, loss.Item())
	}
	if captured && runs != 3 { // two before the recording, and that
		err = fmt.Errorf("the step ran %d times, want 3", runs)
	}
	for _, p := range model.Parameters() {
		b, e := p.Var().Bytes(ctx)
		if e != nil {
			return nil, nil, e
		}
		state = append(state, b...)
	}
	return losses, state, err
}

// Captured steps give the losses and parameters of steps that are not captured, bit for bit, also if blocks are
// computed again.
func TestCapturedSteps(t *testing.T) {
	for _, checkpoint := range []bool{false, true} {
		t.Run(fmt.Sprint("checkpoint=", checkpoint), func(t *testing.T) {
			c := config{vocab: 97, context: 24, layers: 2, heads: 2, embed: 32, checkpoint: checkpoint}
			commtest.OnDevices(t, commtest.FakeGPUs(t, 2), nil, func(pg *comm.ProcessGroup) error {
				losses, state, err := trainSmall(t, pg, c, false)
				if err != nil {
					return err
				}
				got, gotState, err := trainSmall(t, pg, c, true)
				if err != nil {
					return err
				}
				if !slices.Equal(got, losses) || !bytes.Equal(gotState, state) {
					return fmt.Errorf("captured steps have the losses %v, want %v; equal parameters: %v", got, losses, bytes.Equal(gotState, state))
				}
				return nil
			})
		})
	}
}
