package main

import (
	"context"
	"fmt"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/ddp/zero"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
	"github.com/goddp/goddp/test/internal/compare"
)

// outcome is the result of training on one rank.
type outcome struct {
	shared
	buckets   int         // number of buckets
	names     []string    // of the parameters
	gradients [][]float64 // by parameter, reduced, of the first step; nil if the ranks divide them
	final     [][]float64 // the final parameters
}

// shared is the part of an outcome that every rank sends to rank 0.
type shared struct {
	Losses []float64 // of the rank's own samples, by step
	Digest string    // SHA-256 of the final parameters
}

// train repeats PyTorch's training.
func train[T float32 | float64](ctx context.Context, pg *comm.ProcessGroup, rec *recording) (*outcome, error) {
	loss, ok := criteria[rec.Loss]
	if !ok {
		return nil, fmt.Errorf("unknown loss %q", rec.Loss)
	}
	net, err := network[T](rec, pg)
	if err != nil {
		return nil, err
	}
	samples, err := load[T](rec, pg)
	if err != nil {
		return nil, err
	}
	model, opt, whole, err := wrap(net, pg, rec)
	if err != nil {
		return nil, err
	}
	params := model.Parameters()
	got := &outcome{buckets: len(model.Stats().Buckets)}
	for step := range rec.Steps {
		mean, err := pass(ctx, model, loss, samples[step%rec.Batches])
		if err != nil {
			return nil, err
		}
		got.Losses = append(got.Losses, mean)
		if step == 0 && rec.Stage == 0 {
			if got.gradients, err = compare.Values(ctx, params, (*nn.Parameter).Grad); err != nil {
				return nil, err
			}
		}
		if err := opt.Step(); err != nil {
			return nil, err
		}
		opt.ZeroGrad()
	}
	err = whole(func() (err error) {
		got.final, err = compare.Values(ctx, params, (*nn.Parameter).Var)
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, p := range params {
		got.names = append(got.names, p.Name())
	}
	got.Digest = compare.Digest(got.final)
	return got, nil
}

// wrap makes the ranks' networks one model, with its optimizer. whole calls a function that reads parameters.
func wrap(net nn.Module, pg *comm.ProcessGroup, rec *recording) (model *ddp.Model, opt optim.Optimizer, whole func(f func() error) error, err error) {
	sgd := func(params []*nn.Parameter) (*optim.SGD, error) {
		return optim.NewSGD(params, &optim.SGDOptions{LR: rec.LR, Momentum: rec.Momentum, WeightDecay: rec.WeightDecay})
	}
	o := ddp.Options{BucketCapMB: rec.BucketCapMB}
	if rec.Stage > 0 {
		m, opt, err := zero.New(net, pg, sgd, &zero.Options{Options: o, Stage: rec.Stage})
		if err != nil {
			return nil, nil, nil, err
		}
		return m.Model, opt, m.Whole, nil
	}
	if model, err = ddp.New(net, pg, &o); err != nil {
		return nil, nil, nil, err
	}
	opt, err = sgd(model.Parameters())
	return model, opt, func(f func() error) error { return f() }, err
}

// criterion is a loss function.
type criterion func(pred, target *autograd.Variable) *autograd.Variable

var criteria = map[string]criterion{
	"mse": func(pred, target *autograd.Variable) *autograd.Variable { return nn.MSELoss(pred, target, nil) },
	"cross_entropy": func(logits, labels *autograd.Variable) *autograd.Variable {
		return nn.CrossEntropyLoss(logits, labels, nil)
	},
}

// microBatch holds the samples of one pass.
type microBatch struct{ x, y *autograd.Variable }

// pass makes a forward and backward pass over each micro-batch of a batch, and returns the mean loss. The
// last backward pass reduces the gradients.
func pass(ctx context.Context, model *ddp.Model, loss criterion, batch []microBatch) (mean float64, err error) {
	one := func(m microBatch) error {
		l := autograd.MulScalar(loss(model.Forward(m.x), m.y), 1/float64(len(batch)))
		if err := l.Backward(nil); err != nil {
			return err
		}
		x, err := l.TryItem(ctx)
		mean += x
		return err
	}
	last := len(batch) - 1
	for _, m := range batch[:last] {
		if err := model.NoSync(func() error { return one(m) }); err != nil {
			return 0, err
		}
	}
	err = one(batch[last])
	return mean, err
}

// network makes the network with the recorded weights on rank 0 and with zeros on the other ranks, so
// that ddp.New must send rank 0's weights to them.
func network[T float32 | float64](rec *recording, pg *comm.ProcessGroup) (nn.Module, error) {
	parameter := func(layer int, name string, shape ...int) (*nn.Parameter, error) {
		data, err := read[T](rec, fmt.Sprintf("initial/%d.%s", layer, name))
		if err != nil {
			return nil, err
		}
		if pg.Rank() != 0 {
			clear(data)
		}
		return nn.NewParameter(name, autograd.FromSlice(pg.Device(), data, shape...)), nil
	}
	var modules []nn.Module
	for i, out := range rec.Widths[1:] {
		if i > 0 {
			modules = append(modules, nn.ReLU())
		}
		weight, err := parameter(len(modules), "weight", out, rec.Widths[i])
		if err != nil {
			return nil, err
		}
		bias, err := parameter(len(modules), "bias", out)
		if err != nil {
			return nil, err
		}
		modules = append(modules, &nn.LinearLayer{Weight: weight, Bias: bias})
	}
	return nn.Sequential(modules...), nil
}

// load returns this rank's samples, by batch and pass.
func load[T float32 | float64](rec *recording, pg *comm.ProcessGroup) ([][]microBatch, error) {
	dev, rows := pg.Device(), rec.Batch/rec.Micro
	// matrix reads a tensor. It returns a function that makes a variable of its rows [from, from+rows).
	matrix := func(name string, width int) (func(from int) *autograd.Variable, error) {
		data, err := read[T](rec, name)
		return func(from int) *autograd.Variable {
			return autograd.FromSlice(dev, data[from*width:][:rows*width], rows, width)
		}, err
	}
	x, err := matrix("x", rec.Widths[0])
	if err != nil {
		return nil, err
	}
	y, err := matrix("y", rec.Widths[len(rec.Widths)-1])
	if rec.Loss == "cross_entropy" {
		var labels []int64
		labels, err = read[int64](rec, "y")
		y = func(from int) *autograd.Variable { return autograd.FromSlice(dev, labels[from:][:rows]) }
	}
	if err != nil {
		return nil, err
	}
	batches := make([][]microBatch, rec.Batches)
	for b := range batches {
		first := (b*pg.Size() + pg.Rank()) * rec.Batch
		for from := first; from < first+rec.Batch; from += rows {
			batches[b] = append(batches[b], microBatch{x(from), y(from)})
		}
	}
	return batches, nil
}
