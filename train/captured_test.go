//go:build cgo && linux

package train_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/data"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
	"github.com/goddp/goddp/progress"
	"github.com/goddp/goddp/train"
)

// A captured run ends with the bits of one that is not captured, with a schedule, dropout, clipped norms,
// accumulated gradients, of which 15 batches of an epoch leave one, global batches of 7 in micro-batches of 1 and 2, and
// evaluations between the steps, with replicas and with shards of the optimizer's state. Its loss function runs only until the steps are captured.
func TestEmulatedCaptured(t *testing.T) {
	for _, c := range []struct {
		accumulate, global int
		sharded            bool
	}{{1, 0, true}, {2, 0, false}, {1, 7, false}} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			commtest.OnDevices(t, commtest.FakeGPUs(t, 2), nil, func(pg *comm.ProcessGroup) error {
				var calls [2]int
				var ends [2][]float64
				for i, captured := range []bool{false, true} {
					var err error
					ends[i], err = trained(t.Context(), pg, c.sharded, 5/c.accumulate, func(config *train.Config) {
						config.Epochs, config.Accumulate, config.Captured = 3, c.accumulate, captured
						if c.global > 0 {
							config.Data = must.New(data.NewLoader(points(60), pg, &data.LoaderOptions{Batch: 2, GlobalBatch: c.global, Shuffle: true}))
						}
						config.EvaluateEvery, config.Evaluate = 2, func(context.Context) ([]progress.Value, error) {
							nn.Eval(config.Model)()
							return nil, nil
						}
						counted(config, &calls[i])
					})
					if err != nil {
						return err
					}
				}
				if !slices.Equal(ends[0], ends[1]) {
					return fmt.Errorf("the parameters of a captured run are %v, want %v", ends[1], ends[0])
				}
				if calls[1] > calls[0]/2 {
					return fmt.Errorf("a captured run computed the loss %d times, the other one %d times", calls[1], calls[0])
				}
				return nil
			})
		})
	}
}

// An optimizer that embeds one of package optim takes no part in captured steps. Its run is not captured, and ends
// with the same parameters.
func TestEmulatedCapturedWithAnOptimizerOfAnotherModule(t *testing.T) {
	commtest.OnDevices(t, commtest.FakeGPUs(t, 1), nil, func(pg *comm.ProcessGroup) error {
		var ends [2][]float64
		for i, captured := range []bool{false, true} {
			var err error
			ends[i], err = trained(t.Context(), pg, false, 5, func(c *train.Config) {
				c.Epochs, c.Captured = 2, captured
				c.Optimizer = struct{ *optim.SGD }{c.Optimizer.(*optim.SGD)}
			})
			if err != nil {
				return err
			}
		}
		if !slices.Equal(ends[0], ends[1]) {
			return fmt.Errorf("the parameters are %v, want %v", ends[1], ends[0])
		}
		return nil
	})
}

// A captured run with SumLoss has one capture for all weights, which differ from step to step.
func TestEmulatedCapturedSumLoss(t *testing.T) {
	commtest.OnDevices(t, commtest.FakeGPUs(t, 2), nil, func(pg *comm.ProcessGroup) error {
		var ends [2][]float64
		var calls [2]int
		for i, captured := range []bool{false, true} {
			c := newSpeaker(pg, data.LoaderOptions{Batch: 2, GlobalBatch: 4, Shuffle: true, LastBatch: data.Drop})
			c.Captured = captured
			counted(c, &calls[i])
			if err := train.Run(t.Context(), pg, c); err != nil {
				return err
			}
			var err error
			if ends[i], err = values(t.Context(), c.Model); err != nil {
				return err
			}
		}
		if !slices.Equal(ends[0], ends[1]) || calls[0] != 24 || calls[1] != 3 {
			return fmt.Errorf("a captured run computed the loss %d times and ends with %v, want 3 and, as after the %d of the other one, %v", calls[1], ends[1], calls[0], ends[0])
		}
		return nil
	})
}

// A callback ends a captured run on all ranks after the next step, and none of its steps runs uncaptured for that.
func TestEmulatedCapturedRunEndedByACallback(t *testing.T) {
	for _, ranks := range []int{1, 2} {
		commtest.OnDevices(t, commtest.FakeGPUs(t, ranks), nil, func(pg *comm.ProcessGroup) error {
			var calls, last int
			_, err := trained(t.Context(), pg, false, 5, func(c *train.Config) {
				c.Captured = true
				c.OnStep = func(_ context.Context, s *train.Status) error {
					if last = s.Step; s.Step == 8 && pg.Rank() == ranks-1 {
						return train.ErrStop
					}
					return nil
				}
				counted(c, &calls)
			})
			if err == nil && (last != 9 || calls > 4) {
				err = fmt.Errorf("the run ended after %d steps, want 9, and computed the loss %d times uncaptured", last, calls)
			}
			return err
		})
	}
}
