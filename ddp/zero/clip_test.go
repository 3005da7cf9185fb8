package zero

import (
	"fmt"
	"math"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// Each rank finds the norm of the whole model's gradients, not that of its parts, and
// trains as it does without shards.
func TestClipGradNorm(t *testing.T) {
	const bound = 0.05
	onBoth(t, func(pg *comm.ProcessGroup) error {
		var norms, weights [2][]float64
		for i, wrap := range []func(nn.Module, *comm.ProcessGroup, maker, *ddp.Options) (wrapped, error){whole, divided} {
			net := mlp(double)
			w, err := wrap(net, pg, sgd, small)
			if err != nil {
				return err
			}
			clip := func(max float64) (*autograd.Variable, error) {
				return optim.ClipGradNorm(w.opt.Parameters(), max)
			}
			if w.zero != nil {
				clip = w.zero.ClipGradNorm
			}
			for step := range 4 {
				if err := w.loss(pg, device.Float64, step).Backward(); err != nil {
					return err
				}
				before, err := clip(bound)
				if err != nil {
					return err
				}
				after, err := clip(bound)
				if err != nil {
					return err
				}
				if err := w.opt.Step(); err != nil {
					return err
				}
				w.opt.ZeroGrad()
				norms[i] = append(norms[i], before.Item(), after.Item())
			}
			for _, p := range net.Parameters() {
				x, err := p.Var().Read(t.Context())
				if err != nil {
					return err
				}
				weights[i] = append(weights[i], x...)
			}
		}
		for k, norm := range norms[0] {
			if k%2 == 0 && norm <= bound || k%2 == 1 && math.Abs(norm-bound) > 1e-12 {
				return fmt.Errorf("norms before and after: %v, want what is above %v to become that", norms[0], bound)
			}
			if math.Abs(norm-norms[1][k]) > 1e-12 {
				return fmt.Errorf("norms %v, without shards %v", norms[1], norms[0])
			}
		}
		for k, x := range weights[0] {
			if math.Abs(x-weights[1][k]) > 1e-12 {
				return fmt.Errorf("parameters differ from those of training without shards by %v", x-weights[1][k])
			}
		}
		return nil
	}, 2, 4)
}
