package ddp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
)

// A synchronized BatchNorm computes the results, running moments and gradients of the whole batch,
// even if ranks have different numbers of samples, or none.
func TestSyncBatchNorm(t *testing.T) {
	const channels, l = 3, 2
	for _, ranks := range commtest.Sizes(t, 1, 2, 4) {
		for _, least := range []int{0, 1} {
			t.Run(fmt.Sprintf("%d ranks, from %d samples on", ranks, least), func(t *testing.T) {
				commtest.OnRanks(t, ranks, &comm.Options{Log: slog.New(slog.DiscardHandler)}, func(pg *comm.ProcessGroup) error {
					dev := pg.Device()
					samples := func(rank int) int { return least + rank + ranks%2*2 } // the number of samples of a rank
					first, all := 0, 0
					for rank := range ranks {
						if rank < pg.Rank() {
							first += samples(rank)
						}
						all += samples(rank)
					}
					data, weights := make([]float64, all*channels*l), make([]float64, all*channels*l)
					for i := range data {
						data[i], weights[i] = math.Sin(float64(i))+float64(i%channels), math.Cos(float64(3*i))
					}
					o := nn.NormOptions{DType: device.Float64}
					whole, part := nn.BatchNorm1d(channels, &o), nn.BatchNorm1d(channels, &o)
					net := nn.Sequential(nn.Checkpoint(nn.Residual(part)))
					if n := SyncBatchNorm(net, pg); n != 1 {
						return fmt.Errorf("%d layers, want 1", n)
					}
					if err := errors.Join(nn.Place(nn.Sequential(whole), dev, 1), nn.Place(net, dev, 1)); err != nil {
						return err
					}
					read := func(v *autograd.Variable) []float64 { return must.New(v.Read(context.Background())) }
					pass := func(m nn.Module, from, n int) (y, dx []float64) {
						at := func(v []float64) []float64 { return v[from*channels*l : (from+n)*channels*l] }
						x := autograd.FromSlice(dev, at(data), n, channels, l).RequireGrad()
						out := m.Forward(x)
						y = read(out)
						if err := autograd.Sum(autograd.Mul(out, autograd.FromSlice(dev, at(weights), n, channels, l))).Backward(nil); err != nil {
							panic(err)
						}
						return y, read(x.Grad())
					}
					y, dx := pass(nn.Residual(whole), 0, all)
					gotY, gotDX := pass(net, first, samples(pg.Rank()))
					for _, p := range part.Parameters() { // the gradient of the whole batch is the sum of the ranks' gradients
						if err := pg.AllReduce(p.Grad().Tensor(), comm.Sum).Wait(context.Background()); err != nil {
							return err
						}
					}
					same := func(what string, got, want []float64) error {
						for i, v := range got {
							if math.Abs(v-want[i]) > 1e-12 {
								return fmt.Errorf("%s, element %d: %v, want %v", what, i, v, want[i])
							}
						}
						return nil
					}
					err := errors.Join(same("results", gotY, y[first*channels*l:]), same("gradients", gotDX, dx[first*channels*l:]))
					state := nn.State(whole)
					for name, v := range nn.State(part) {
						err = errors.Join(err, same(name, read(v), read(state[name])))
						if g := v.Grad(); g != nil {
							err = errors.Join(err, same("gradient of "+name, read(g), read(state[name].Grad())))
						}
					}
					return err
				})
			})
		}
	}
}

// Every rank refuses a batch of one sample in all ranks, as a rank alone does. Two samples are enough, on one rank or on two.
func TestSyncBatchNormOfOneSample(t *testing.T) {
	for _, c := range []struct {
		samples    [2]int
		isTraining bool
		refused    bool
	}{{[2]int{1, 0}, true, true}, {[2]int{0, 1}, true, true}, {[2]int{1, 1}, true, false}, {[2]int{2, 0}, true, false}, {[2]int{1, 0}, false, false}} {
		t.Run(fmt.Sprintf("%d samples, training: %t", c.samples, c.isTraining), func(t *testing.T) {
			commtest.OnRanks(t, 2, &comm.Options{Log: slog.New(slog.DiscardHandler)}, func(pg *comm.ProcessGroup) (err error) {
				layer := nn.BatchNorm1d(3, nil)
				SyncBatchNorm(layer, pg)
				layer.SetTraining(c.isTraining)
				if err := nn.Place(layer, pg.Device(), 1); err != nil {
					return err
				}
				defer func() {
					r := recover()
					p, isShape := r.(*device.ShapeError)
					if isShape != c.refused || !isShape && r != nil || isShape && !strings.Contains(p.Error(), "more than one element a channel in training, over all ranks") {
						err = fmt.Errorf("rank %d: panic with %v, refused should be %t", pg.Rank(), r, c.refused)
					}
				}()
				return layer.Forward(autograd.Zeros(pg.Device(), device.Float32, c.samples[pg.Rank()], 3)).Err()
			})
		})
	}
}
