package metrics_test

import (
	"fmt"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/data"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/metrics"
	"github.com/goddp/goddp/nn"
)

// watched returns its input, and records the modes in which it was called.
type watched struct {
	nn.Container
	trained, recorded bool
	w                 *autograd.Variable
}

func (m *watched) Forward(x *autograd.Variable) *autograd.Variable {
	m.trained = m.trained || m.Training()
	y := autograd.Mul(x, m.w)
	m.recorded = m.recorded || y.RequiresGrad()
	return y
}

// Over 3 ranks, each of 7 samples counts once, even if the loader's position is within the epoch, and also with equally
// many batches on each rank. During the call the model is in evaluation mode. Afterwards each layer has its old mode and the
// loader its old position.
func TestAccuracy(t *testing.T) {
	fields := []data.Field{{DType: device.Float32, Shape: device.Shape{2}}, {DType: device.Int64}}
	set := data.Each(7, fields, func(i int, dst []device.Tensor) error {
		device.Elements[float32](dst[0])[0] = float32(i) // class 0 is predicted from sample 3 on, the first above 2.5
		device.Elements[float32](dst[0])[1] = 2.5
		device.Elements[int64](dst[1])[0] = int64(i % 2)
		return nil
	})
	commtest.OnRanks(t, 3, nil, func(pg *comm.ProcessGroup) error {
		loader, err := data.NewLoader(set, pg, &data.LoaderOptions{Batch: 1, LastBatch: data.Uneven})
		if err != nil {
			return err
		}
		resumed := data.Position{Sample: 6}
		if err := loader.Resume(resumed); err != nil {
			return err
		}
		model := &watched{w: autograd.Scalar(pg.Device(), 1).RequireGrad()}
		frozen := nn.Add(&model.Container, "frozen", nn.BatchNorm1d(2, nil))
		nn.Eval(frozen)
		got, err := metrics.Accuracy(t.Context(), pg, model, loader)
		if err != nil {
			return err
		}
		const want = 3.0 / 7
		if got != want { // samples 1, 4 and 6 are classified correctly
			return fmt.Errorf("accuracy %v, want %v", got, want)
		}
		padded, err := data.NewLoader(set, pg, &data.LoaderOptions{Batch: 2, GlobalBatch: 6})
		if err != nil {
			return err
		}
		if got, err := metrics.Accuracy(t.Context(), pg, model, padded); got != want || err != nil {
			return fmt.Errorf("accuracy %v with padding, want %v; %w", got, want, err)
		}
		if model.trained || model.recorded || !model.Training() || frozen.Training() {
			return fmt.Errorf("in training mode: %v, recorded: %v, in training mode afterwards: %v, its layer in evaluation mode: %v",
				model.trained, model.recorded, model.Training(), frozen.Training())
		}
		if p := loader.Position(); p != resumed {
			return fmt.Errorf("the loader is at %+v afterwards, want %+v", p, resumed)
		}
		left := 0
		for _, err := range loader.Epoch(t.Context(), 0) {
			if err != nil {
				return err
			}
			left++
		}
		if want := max(0, 1-pg.Rank()); left != want {
			return fmt.Errorf("%d batches are left in the epoch, want %d", left, want)
		}
		return nil
	})
}
