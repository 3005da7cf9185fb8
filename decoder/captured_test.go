//go:build cgo && linux

package decoder_test

import (
	"bytes"
	"fmt"
	"runtime"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/zero"
	"github.com/goddp/goddp/decoder"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// trainSmall makes steps of a small model with bfloat16 parameters and Float32 masters, whose optimizer's state is divided
// among the ranks. It returns the losses and the parameters as bytes.
func trainSmall(t *testing.T, pg *comm.ProcessGroup, recompute, captured bool) (state []byte, err error) {
	const rows, tokens, steps = 2, 8, 5
	dev, c := pg.Device(), small
	c.Recompute = recompute
	net, err := decoder.New(c)
	if err != nil {
		return nil, err
	}
	if err := nn.Place(net, dev, 1); err != nil {
		return nil, err
	}
	if err := nn.Cast(net, device.BFloat16, &nn.CastOptions{Masters: true}); err != nil {
		return nil, err
	}
	model, opt, err := zero.New(net, pg, func(params []*nn.Parameter) (*optim.AdamW, error) {
		return optim.NewAdamW(params, &optim.AdamWOptions{LR: 0.01, MasterWeights: true})
	}, nil)
	if err != nil {
		return nil, err
	}
	runs := 0
	step := func(in ...*autograd.Variable) (*autograd.Variable, error) {
		runs++
		opt.ZeroGrad()
		loss := model.Run(func() *autograd.Variable { return net.Loss(in[0], in[1], nil) })
		if err := loss.Backward(nil); err != nil {
			return nil, err
		}
		return loss, opt.Step()
	}
	if captured {
		step = autograd.Capture(dev, step, &autograd.CaptureOptions{Required: true})
	}
	for n := range steps {
		ids := make([]int64, rows*(tokens+1))
		for i := range ids {
			ids[i] = int64((i*i + 7*n + 3*pg.Rank()) % c.Vocab)
		}
		in, next := autograd.FromSlice(dev, ids[:rows*tokens], rows, tokens), autograd.FromSlice(dev, ids[1:1+rows*tokens], rows, tokens)
		loss, err := step(in, next)
		if err != nil {
			return nil, fmt.Errorf("step %d: %w", n, err)
		}
		state = fmt.Append(state, loss.Item(), " ")
		if n == 3 { // a longer text needs other angles; those of the captured step stay
			autograd.NoGrad(dev, func() { err = net.Hidden(autograd.FromSlice(dev, make([]int64, 20), 1, 20), nil).Err() })
			runtime.GC()
		}
	}
	if captured && runs != 3 { // two before the capture, and that
		err = fmt.Errorf("the step ran %d times, want 3", runs)
	}
	for _, p := range net.Parameters() {
		b, e := p.Var().Bytes(t.Context())
		if e != nil {
			return nil, e
		}
		state = append(state, b...)
	}
	return state, err
}

// Steps in bfloat16 with ddp/zero give the same losses and parameters, bit for bit, with and without a capture, and with
// and without recomputed blocks.
func TestEmulatedCapturedSteps(t *testing.T) {
	testkit.Emulated(t)
	commtest.OnDevices(t, commtest.FakeGPUs(t, 2), nil, func(pg *comm.ProcessGroup) error {
		want, err := trainSmall(t, pg, false, false)
		if err != nil {
			return err
		}
		for _, recompute := range []bool{false, true} {
			got, err := trainSmall(t, pg, recompute, true)
			if err == nil && !bytes.Equal(got, want) {
				err = fmt.Errorf("recomputed %t and captured, the losses and parameters are %.80q, want %.80q", recompute, got, want)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}
