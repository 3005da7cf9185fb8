package train_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/data"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/ddp/zero"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/metrics"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
	"github.com/goddp/goddp/optim/schedule"
	"github.com/goddp/goddp/progress"
	"github.com/goddp/goddp/train"
)

// division says whether the optimizer's state is divided among the ranks.
type division int

const (
	whole division = iota
	divided
	copied // divided, and each shard is on two ranks
)

// smooth returns a configuration without random numbers and its model. In float64 it trains with 3 epochs of 50 samples.
// An epoch has 4 steps. The first three have 16 samples each, the last one has 2.
func smooth(pg *comm.ProcessGroup, batch int, of division) (*train.Config, *ddp.Model) {
	autograd.Generator(pg.Device()).Seed(1)
	wide := &nn.LinearOptions{DType: device.Float64}
	net := nn.Sequential(nn.Linear(3, 8, wide), nn.Tanh(), nn.Linear(8, 1, wide))
	sgd := func(params []*nn.Parameter) (*optim.SGD, error) {
		return optim.NewSGD(params, &optim.SGDOptions{LR: 1, Momentum: 0.9})
	}
	var model *ddp.Model
	var opt optim.Optimizer
	if of != whole {
		m, o, err := zero.New(net, pg, sgd, &zero.Options{CopyShards: of == copied})
		if err != nil {
			panic(err)
		}
		model, opt = m.Model, o
	} else {
		model = must.New(ddp.New(net, pg, nil))
		opt = must.New(sgd(model.Parameters()))
	}
	return &train.Config{
		Model: model, Epochs: 3, LR: schedule.Linear(0.1, 0.01, 12), ClipNorm: 1, Optimizer: must.New(optim.NewEMA(net, opt, nil)),
		Data: must.New(data.NewLoader(points(50), pg, &data.LoaderOptions{Batch: batch, GlobalBatch: 16, Shuffle: true})),
		Loss: func(b *data.Batch) *autograd.Variable {
			return nn.MSELoss(model.Forward(autograd.Cast(b.Vars[0], device.Float64)), autograd.Cast(b.Vars[1], device.Float64), nil)
		},
	}, model
}

// distance returns the largest difference of two lists of values.
func distance(a, b []float64) (d float64) {
	for i := range a {
		d = max(d, math.Abs(a[i]-b[i]))
	}
	return d
}

// With GlobalBatch, all numbers of ranks and of micro-batches make the same steps up to rounding.
func TestGlobalBatch(t *testing.T) {
	var want []float64
	for _, batch := range []int{0, 4, 3, 1} {
		for n := 1; n <= 4; n++ {
			commtest.OnGoroutines(t, n, nil, func(pg *comm.ProcessGroup) error {
				c, model := smooth(pg, batch, whole)
				if steps := c.Steps(); steps != 12 {
					return fmt.Errorf("%d steps with %d ranks, want 12", steps, n)
				}
				if err := train.Run(t.Context(), pg, c); err != nil {
					return err
				}
				got, err := values(t.Context(), model)
				if want == nil { // with one rank
					want = got
				}
				if d := distance(got, want); !(d < 1e-13) {
					return fmt.Errorf("%d ranks with micro-batches of %d: the parameters differ by %v from those of one rank", n, batch, d)
				}
				return err
			})
		}
	}
}

// The steps after which a rank is lost and another one joins.
const killed, joined = 5, 10

// lossesOfRanks trains with four ranks. It returns the loss over all samples after each of 12 steps, the number of
// ranks, and the averages of the parameters. If the ranks change, rank 1 is lost within the sixth step, and another one joins them after the tenth.
func lossesOfRanks(t *testing.T, change bool, of division) (losses [12]float64, sizes [12]int, averages []float64) {
	o := &comm.Options{}
	backend.Survive(o)
	folder := t.TempDir()
	var mu sync.Mutex
	var wg sync.WaitGroup
	var work func(pg *comm.ProcessGroup, worker int)
	work = func(pg *comm.ProcessGroup, worker int) {
		defer pg.Close()
		c, model := smooth(pg, 2, of)
		if of == divided { // a lost shard is loaded
			c.Checkpoints, c.SaveEvery = folder, 2
		}
		lossOf := c.Loss
		c.Loss = func(b *data.Batch) *autograd.Variable {
			if steps, _ := c.Optimizer.Committed(); change && worker == 1 && steps == killed && b.EndsStep {
				backend.Kill(pg)
				runtime.Goexit()
			}
			return lossOf(b)
		}
		all := must.New(data.NewLoader(points(50), pg, &data.LoaderOptions{Batch: 50, LastBatch: data.Uneven}))
		c.EvaluateEvery, c.Evaluate = 1, func(ctx context.Context) ([]progress.Value, error) {
			steps, _ := c.Optimizer.Committed()
			for b, err := range all.Epoch(ctx, 0) {
				if err != nil {
					return nil, err
				}
				sum, err := metrics.Reduce(ctx, pg, metrics.Mean(lossOf(b).Item(), len(b.Indices)))
				if err != nil {
					return nil, err
				}
				mu.Lock()
				losses[steps-1], sizes[steps-1] = sum[0].Value, pg.Size()
				mu.Unlock()
			}
			if change && worker == 0 && steps == joined && pg.Size() == 3 {
				wg.Go(func() { work(must.New(backend.Replacement(pg, 4)).(*comm.ProcessGroup), 4) })
				for !pg.Failed() { // until the new worker asks to join
					runtime.Gosched()
				}
				return nil, errors.New("the ranks change")
			}
			return nil, nil
		}
		if err := train.Run(t.Context(), pg, c); err != nil {
			t.Errorf("worker %d: %v", worker, err)
		}
		if worker == 0 {
			if err := c.Optimizer.(*optim.EMA).With(func() (err error) {
				averages, err = values(t.Context(), model)
				return err
			}); err != nil {
				t.Error(err)
			}
		}
	}
	for worker, pg := range must.New(comm.Local(4, o)) {
		wg.Go(func() { work(pg, worker) })
	}
	wg.Wait()
	return losses, sizes, averages
}

// A run of four ranks that goes on with three and then again with four has the losses of an undisturbed one, with
// whole optimizers and with divided ones.
func TestGlobalBatchOfAGroupThatChanges(t *testing.T) {
	want, _, wantAverages := lossesOfRanks(t, false, whole)
	got, sizes, _ := lossesOfRanks(t, true, whole)
	for _, of := range []division{divided, copied} {
		losses, _, averages := lossesOfRanks(t, true, of)
		if !(distance(losses[:], want[:]) < 1e-12 && distance(averages, wantAverages) < 1e-12) {
			t.Errorf("with a divided optimizer, copied: %v, the losses are %v, without a change %v; averages %v, %v", of == copied, losses, want, averages, wantAverages)
		}
	}
	sizes[killed-1] = 0 // the loss may interrupt the evaluation before it on some ranks, and it is then made again
	if sizes != [12]int{4, 4, 4, 4, 0, 3, 3, 3, 3, 4, 4, 4} {
		t.Errorf("the steps had %v ranks", sizes)
	}
	if d := distance(got[:], want[:]); !(d < 1e-12) || want[11] > want[0]/10 {
		t.Errorf("the losses are %v, without a change %v", got, want)
	}
}
