//go:build cgo && linux

package decoder_test

import (
	"bytes"
	"errors"
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
	"github.com/goddp/goddp/internal/testkit/steptest"
	"github.com/goddp/goddp/lora"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// trainSmall makes steps of a small model with bfloat16 parameters and Float32 masters, whose optimizer's state is divided
// among the ranks. change, if not nil, changes the model first. It returns the losses and the parameters as bytes.
func trainSmall(t *testing.T, pg *comm.ProcessGroup, recompute decoder.Recompute, captured bool, change func(*decoder.Model) error) ([]byte, error) {
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
	if change != nil {
		if err := change(net); err != nil {
			return nil, err
		}
	}
	model, opt, err := zero.New(net, pg, func(params []*nn.Parameter) (*optim.AdamW, error) {
		return optim.NewAdamW(params, &optim.AdamWOptions{LR: 0.01, MasterWeights: true, MomentDType: device.BFloat16})
	}, nil)
	if err != nil {
		return nil, err
	}
	ignored := int64(3)
	inputs := func(n int) []*autograd.Variable {
		if n == steptest.Steps-1 { // a longer text needs other angles; those of the captured step stay
			autograd.NoGrad(dev, func() { err = net.Hidden(autograd.FromSlice(dev, make([]int64, 20), 1, 20), nil).Err() })
			runtime.GC()
		}
		ids, next := steptest.Tokens(dev, 2, 8, c.Vocab, 7*n+3*pg.Rank())
		return []*autograd.Variable{ids, next}
	}
	state, e := steptest.Run(t.Context(), net.Parameters(), captured, inputs, func(in ...*autograd.Variable) (*autograd.Variable, error) {
		opt.ZeroGrad()
		loss := model.Run(func() *autograd.Variable {
			return net.Loss(in[0], in[1], &decoder.ForwardOptions{Loss: autograd.LinearLossOptions{IgnoreIndex: &ignored}})
		})
		if err := loss.Backward(nil); err != nil {
			return nil, err
		}
		return loss, opt.Step()
	})
	return state, errors.Join(err, e)
}

// Steps in bfloat16 with ddp/zero give the same losses and parameters, bit for bit, with and without a capture, and with
// and without recomputation. So do steps of adapters, one of which is the head's.
func TestEmulatedCapturedSteps(t *testing.T) {
	testkit.Emulated(t)
	commtest.OnDevices(t, commtest.FakeGPUs(t, 2), nil, func(pg *comm.ProcessGroup) error {
		adapt := func(m *decoder.Model) error {
			_, err := lora.Add(m, &lora.Options{Targets: []string{"q_proj", "lm_head"}})
			return err
		}
		for _, change := range []func(*decoder.Model) error{nil, adapt} {
			want, err := trainSmall(t, pg, "", false, change)
			if err != nil {
				return err
			}
			ways := []decoder.Recompute{"", decoder.RecomputeCheap, decoder.RecomputeBlocks}
			if change != nil {
				ways = ways[:1]
			}
			for _, recompute := range ways {
				got, err := trainSmall(t, pg, recompute, true, change)
				if err == nil && !bytes.Equal(got, want) {
					err = fmt.Errorf("recomputed %q, adapted %t and captured, the losses and parameters are %.80q, want %.80q", recompute, change != nil, got, want)
				}
				if err != nil {
					return err
				}
			}
		}
		return nil
	})
}
