package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/data"
	"github.com/goddp/goddp/decoder"
	"github.com/goddp/goddp/metrics"
	"github.com/goddp/goddp/progress"
)

// validation measures a model between training steps.
type validation struct {
	pg     *comm.ProcessGroup
	net    *decoder.Model
	model  distributed
	tokens *data.Tokens // nil: there is no text to validate with
	loader *data.Loader
	every  int // the number of steps between two validations
}

// newValidation opens the shards of --validate, for samples of window tokens. The caller closes the validation.
func newValidation(pg *comm.ProcessGroup, net *decoder.Model, model distributed, window int) (v *validation, err error) {
	v = &validation{pg: pg, net: net, model: model}
	if *held == "" {
		return v, nil
	}
	v.every = *heldEvery
	if v.tokens, err = data.OpenTokens(*held, window, *vocab); err != nil {
		return nil, err
	}
	v.loader, err = data.NewLoader(v.tokens, pg, &data.LoaderOptions{Batch: *batch, LastBatch: data.Drop})
	if err == nil && (v.every < 1 || *heldFirst < 1 || *heldFirst > v.loader.Steps()) {
		err = fmt.Errorf("--validate-every %d and --validate-batches %d, want at least 1 of each, and at most the %d batches of the shards", v.every, *heldFirst, v.loader.Steps())
	}
	if err != nil {
		return nil, errors.Join(err, v.close())
	}
	return v, nil
}

func (v *validation) close() error {
	if v.tokens == nil {
		return nil
	}
	return v.tokens.Close()
}

// evaluate returns the mean loss of the first batches of the loader, if there is one, and the largest amount
// of device memory that was in use at once.
func (v *validation) evaluate(ctx context.Context) ([]progress.Value, error) {
	peak := float64(v.pg.Device().Memory().Peak)
	peak += float64(v.model.Stats().Held) // the process group allocates them
	values := []progress.Value{progress.V("peak_bytes", peak)}
	if v.tokens == nil {
		return values, nil
	}
	var sum float64
	n := 0
	for b, err := range v.loader.Epoch(ctx, 0) {
		if err != nil {
			return nil, err
		}
		var loss float64
		autograd.NoGrad(v.pg.Device(), func() { loss, err = v.net.Loss(b.Vars[0], b.Vars[1], nil).TryItem(ctx) })
		if err != nil {
			return nil, err
		}
		sum += loss
		if n++; n == *heldFirst {
			break
		}
	}
	all, err := metrics.Reduce(ctx, v.pg, metrics.Mean(sum/float64(n), n))
	if err != nil {
		return nil, err
	}
	return append(values, progress.V("validation_loss", all[0].Value)), nil
}
