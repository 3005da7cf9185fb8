package zero

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/goddp/goddp/amp"
	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// Each rank computes the norm of the whole model's gradients, not only of its parts, whatever the norm, and trains as
// without shards.
func TestClipGradNorm(t *testing.T) {
	const bound = 0.05
	onBoth(t, func(pg *comm.ProcessGroup) error {
		for _, p := range []float64{2, 1, 3, math.Inf(1)} {
			var norms, weights [2][]float64
			for i, wrap := range []wrapper{whole, divided} {
				net := mlp(double)
				w := must.New(wrap(net, pg, sgd, small))
				clip := func() (*autograd.Variable, error) {
					return optim.ClipGradNorm(w.opt.Parameters(), bound, &optim.ClipOptions{NormType: p})
				}
				if w.zero != nil {
					clip = func() (*autograd.Variable, error) { return w.zero.ClipGradNorm(bound, &optim.ClipOptions{NormType: p}) }
				}
				for step := range 3 {
					if err := w.loss(pg, device.Float64, step).Backward(nil); err != nil {
						return err
					}
					for range 2 { // before and after clipping
						norm, err := clip()
						if err != nil {
							return err
						}
						norms[i] = append(norms[i], norm.Item())
					}
					if err := w.opt.Step(); err != nil {
						return err
					}
					w.opt.ZeroGrad()
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
				if before := norms[0][k-k%2]; before <= bound || k%2 == 1 && math.Abs(norm-bound*before/(before+1e-6)) > 1e-12 {
					return fmt.Errorf("%v-norms before and after: %v, want what is above %v to become that", p, norms[0], bound)
				}
				if math.Abs(norm-norms[1][k]) > 1e-12*max(1, norm) {
					return fmt.Errorf("%v-norms %v, without shards %v", p, norms[1], norms[0])
				}
			}
			for k, x := range weights[0] {
				if math.Abs(x-weights[1][k]) > 1e-12 {
					return fmt.Errorf("%v-norm: parameters differ from those of training without shards by %v", p, x-weights[1][k])
				}
			}
		}
		return nil
	}, 2, 4)
}

// full is a device that has no memory left while *now is true.
type full struct {
	device.Device
	isFull *bool
}

var errFull = errors.New("out of memory")

func (d full) Alloc(size int) (device.Buffer, error) {
	if *d.isFull {
		return device.Buffer{}, errFull
	}
	return d.Device.Alloc(size)
}

// If a rank cannot compute its part of the norm, the other ranks get an error and do not wait.
func TestFailedClippingFailsOnAllRanks(t *testing.T) {
	var devs []device.Device
	var isFull [2]bool
	for i, d := range devices(t, len(isFull), false) {
		devs = append(devs, full{d, &isFull[i]})
	}
	commtest.OnDevices(t, devs, quiet(), func(pg *comm.ProcessGroup) error {
		w := must.New(divided(mlp(double), pg, sgd, small))
		err := w.loss(pg, device.Float64, 0).Backward(nil) // rank 1 may have finished this and failed before rank 0 has
		if err == nil {
			isFull[pg.Rank()] = pg.Rank() == 1
			_, err = w.zero.ClipGradNorm(1, nil)
		}
		if rank := pg.Rank(); rank == 0 && !errors.Is(err, comm.ErrAborted) || rank == 1 && !errors.Is(err, errFull) {
			return fmt.Errorf("got %v, want that rank 1 has no memory", err)
		}
		isFull[pg.Rank()] = false
		return nil
	})
}

// With JoinOptions.Step, ranks without inputs take part in the norm.
func TestClipGradNormWithinJoin(t *testing.T) {
	onBoth(t, func(pg *comm.ProcessGroup) error {
		net := mlp(double)
		w := must.New(divided(net, pg, sgd, small))
		clipped := 0
		step := func() error {
			norm, err := w.zero.ClipGradNorm(0.05, nil)
			if err != nil {
				return err
			}
			if norm.Item() > 0.05 {
				clipped++
			}
			return w.opt.Step()
		}
		err := w.join(JoinOptions{Step: step}, func() error {
			return w.loop(pg, must.New(amp.NewScaler(&amp.Options{Disabled: true})), step, 2+2*pg.Rank(), nil)
		})
		if err != nil {
			return err
		}
		if want := 2 * pg.Size(); clipped != want {
			return fmt.Errorf("%d steps were clipped, want %d", clipped, want)
		}
		return alike(pg, net)
	}, 2)
}

// Code that needs whole gradients refuses those of this package's parameters and parts, and works again when the module
// is wrapped without shards.
func TestDividedGradientsAreRefused(t *testing.T) {
	onBoth(t, func(pg *comm.ProcessGroup) error {
		net := mlp(double)
		w := must.New(divided(net, pg, sgd, small))
		if err := w.loss(pg, device.Float64, 0).Backward(nil); err != nil {
			return err
		}
		other, err := optim.NewAdamW(net.Parameters(), &optim.AdamWOptions{LR: 0.1})
		if err != nil {
			return err
		}
		clip := func(params []*nn.Parameter) error {
			_, err := optim.ClipGradNorm(params, 1, nil)
			return err
		}
		clipOver := func(params []*nn.Parameter) error {
			_, err := optim.ClipGradNorm(params, 1, &optim.ClipOptions{Total: func(device.Tensor) error { return nil }})
			return err
		}
		for _, c := range []struct {
			name string
			call func() error
			want string // in the error; empty: none
		}{
			{"ClipGradNorm of the model", func() error { return clip(w.model.Parameters()) }, "ClipGradNorm of the optimizer that zero.New returned"},
			{"ClipGradNorm of the parts", func() error { return clip(w.opt.Parameters()) }, "ClipGradNorm of the optimizer that zero.New returned"},
			{"ClipGradNorm of the model, with a Total", func() error { return clipOver(w.model.Parameters()) }, "ClipGradNorm of the optimizer that zero.New returned"},
			{"another optimizer", other.Step, "step with the optimizer that zero.New returned"},
			{"optim.State", func() error { _, err := optim.State(w.opt); return err }, "use zero.Optimizer.Gather"},
			{"ClipGradValue", func() error { return optim.ClipGradValue(w.model.Parameters(), 1) }, ""},
		} {
			if err := c.call(); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				return fmt.Errorf("%s: got %v, want %q", c.name, err, c.want)
			}
		}
		w = must.New(whole(net, pg, sgd, small))
		if err := w.loss(pg, device.Float64, 0).Backward(nil); err != nil {
			return err
		}
		return errors.Join(clip(w.model.Parameters()), w.opt.Step())
	}, 2)
}
