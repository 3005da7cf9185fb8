package zero

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/commtest"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// Each rank computes the norm of the whole model's gradients, not only of its parts, and trains as
// without shards.
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
			if k%2 == 0 && norm <= bound {
				return fmt.Errorf("norms before and after: %v, want what is above %v to become that", norms[0], bound)
			}
			if k%2 == 1 {
				before := norms[0][k-1]
				if want := bound * before / (before + 1e-6); math.Abs(norm-want) > 1e-12 {
					return fmt.Errorf("a norm of %v was clipped to %v, want %v", before, norm, want)
				}
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
		w, err := divided(mlp(double), pg, sgd, small)
		if err != nil {
			return err
		}
		err = w.loss(pg, device.Float64, 0).Backward() // rank 1 may have finished this and failed before rank 0 has
		if err == nil {
			isFull[pg.Rank()] = pg.Rank() == 1
			_, err = w.zero.ClipGradNorm(1)
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
		w, err := divided(net, pg, sgd, small)
		if err != nil {
			return err
		}
		clipped := 0
		step := func() error {
			norm, err := w.zero.ClipGradNorm(0.05)
			if err != nil {
				return err
			}
			if norm.Item() > 0.05 {
				clipped++
			}
			return w.opt.Step()
		}
		err = w.join(JoinOptions{Step: step}, func() error {
			for i := range 2 + 2*pg.Rank() {
				if err := w.loss(pg, device.Float64, i).Backward(); err != nil {
					return err
				}
				if err := step(); err != nil {
					return err
				}
				w.opt.ZeroGrad()
			}
			return nil
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

// All p-norms are those of the whole model, on all ranks.
func TestClipGradPNorm(t *testing.T) {
	onBoth(t, func(pg *comm.ProcessGroup) error {
		for _, p := range []float64{1, 3, math.Inf(1)} {
			var norms [2]float64
			for i, wrap := range []func(nn.Module, *comm.ProcessGroup, maker, *ddp.Options) (wrapped, error){whole, divided} {
				w, err := wrap(mlp(double), pg, sgd, small)
				if err != nil {
					return err
				}
				if err := w.loss(pg, device.Float64, 0).Backward(); err != nil {
					return err
				}
				clip := func(p, max float64) (*autograd.Variable, error) {
					return optim.ClipGradPNorm(w.opt.Parameters(), p, max)
				}
				if w.zero != nil {
					clip = w.zero.ClipGradPNorm
				}
				norm, err := clip(p, 0.05)
				if err != nil {
					return err
				}
				norms[i] = norm.Item()
			}
			if math.Abs(norms[0]-norms[1]) > 1e-12*norms[0] || norms[0] == 0 {
				t.Errorf("rank %d: the %v-norm is %v, without shards %v", pg.Rank(), p, norms[1], norms[0])
			}
		}
		return nil
	})
}
