package train

import (
	"context"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/data"
	"github.com/goddp/goddp/metrics"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/progress"
)

// Accuracy returns a function for Config.Evaluate. It returns, as "accuracy", the fraction of a
// loader's samples that model classifies correctly: see [metrics.Accuracy].
func Accuracy(pg *comm.ProcessGroup, model nn.Module, loader *data.Loader) func(context.Context) ([]progress.Value, error) {
	return func(ctx context.Context) ([]progress.Value, error) {
		accuracy, err := metrics.Accuracy(ctx, pg, model, loader)
		return []progress.Value{progress.V("accuracy", accuracy)}, err
	}
}
