//go:build cgo && linux

package amp_test

import (
	"strings"
	"testing"

	"github.com/goddp/goddp/amp"
	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/commtest"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// embedding is an optimizer of another module.
type embedding struct{ *optim.SGD }

// A captured step cannot read the scale on the host, and its optimizer must take part in the capture.
func TestScaledStepsThatCannotBeCaptured(t *testing.T) {
	dev := commtest.FakeGPUs(t, 1)[0]
	for want, isEmbedded := range map[string]bool{"GetScale returns a number of the host": false, "does not take part in captured steps": true} {
		net := nn.Linear(6, 3)
		if err := nn.Place(net, dev, 5); err != nil {
			t.Fatal(err)
		}
		sgd, err := optim.NewSGD(net.Parameters(), &optim.SGDOptions{LR: 0.1})
		if err != nil {
			t.Fatal(err)
		}
		var opt optim.Optimizer = sgd
		if isEmbedded {
			opt = embedding{sgd}
		}
		scaler, err := amp.NewScaler(nil)
		if err != nil {
			t.Fatal(err)
		}
		step := autograd.Capture(dev, func(in ...*autograd.Variable) (*autograd.Variable, error) {
			opt.ZeroGrad()
			bound := 1.0
			if !isEmbedded {
				bound *= scaler.GetScale()
			}
			loss := autograd.Mean(net.Forward(in[0]))
			if err := scaler.Scale(loss).Backward(); err != nil {
				return nil, err
			}
			if _, err := optim.ClipGradNorm(opt.Parameters(), bound); err != nil {
				return nil, err
			}
			err := scaler.Step(opt)
			scaler.Update()
			return loss, err
		}, &autograd.CaptureOptions{Required: true})
		for n := range 4 {
			_, err := step(autograd.Zeros(dev, device.Float32, 1, 6))
			if got := err != nil && strings.Contains(err.Error(), want); got != (n >= 2) {
				t.Errorf("step %d gave %v, want an error with %q from the third on", n, err, want)
			}
		}
	}
}
