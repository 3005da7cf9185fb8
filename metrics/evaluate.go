package metrics

import (
	"context"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/data"
	"github.com/goddp/goddp/nn"
)

// Accuracy returns the fraction of samples that model classifies correctly, over the batches of one epoch on
// all ranks. model maps the first field of a batch to logits [n classes]; the second field is the labels [n].
// The model is in evaluation mode during the call; afterwards each layer's mode is restored. No gradients are
// recorded. The epoch is complete, even if the loader was resumed within it ([data.Loader.Resume]), and
// [data.Loader.Position] stays.
//
// A sample counts each time that the loader returns it with a Weight. With data.Uneven that is once; also with data.Pad and
// a GlobalBatch, which gives all ranks the same number of batches, as stage 3 of package ddp/zero needs.
//
// All ranks must call Accuracy. They get the same number, NaN if there are no samples.
func Accuracy(ctx context.Context, pg *comm.ProcessGroup, model nn.Module, loader *data.Loader) (float64, error) {
	defer nn.Eval(model)()
	correct, seen := 0, 0
	own := *loader // its position moves, that of loader does not
	for b, err := range own.EpochFrom(ctx, data.Position{}) {
		if err != nil {
			return 0, err
		}
		autograd.NoGrad(pg.Device(), func() {
			var n int
			n, err = Correct(ctx, model.Forward(b.Vars[0]), b.Vars[1], 1)
			if b.Weight > 0 {
				correct, seen = correct+n, seen+len(b.Indices)
			}
		})
		if err != nil {
			return 0, err
		}
	}
	all, err := Reduce(ctx, pg, Count(correct), Count(seen))
	if err != nil {
		return 0, err
	}
	return all[0].Value / all[1].Value, nil
}

// Loss returns the mean loss over the labels of one epoch on all ranks. sum computes the sum of the losses of a batch's
// labels; the data set of loader must be [data.Labeled]. All else is as for [Accuracy].
func Loss(ctx context.Context, pg *comm.ProcessGroup, model nn.Model, loader *data.Loader, sum func(b *data.Batch) *autograd.Variable) (float64, error) {
	defer nn.Eval(model)()
	total, labels := 0.0, 0
	own := *loader // its position moves, that of loader does not
	for b, err := range own.EpochFrom(ctx, data.Position{}) {
		if err != nil {
			return 0, err
		}
		autograd.NoGrad(pg.Device(), func() {
			var loss float64
			loss, err = sum(b).TryItem(ctx)
			if b.Weight > 0 {
				total, labels = total+loss, labels+b.Labels
			}
		})
		if err != nil {
			return 0, err
		}
	}
	all, err := Reduce(ctx, pg, Sum(total), Count(labels))
	if err != nil {
		return 0, err
	}
	return all[0].Value / all[1].Value, nil
}
