package main

import (
	"context"

	"github.com/goddp/goddp/amp"
	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/ddp/zero"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
	"github.com/goddp/goddp/test/internal/compare"
)

// outcome is the result of training, on one rank or in a single process.
type outcome struct {
	shared
	final [][]float64 // the final parameters
}

// shared is the part of an outcome that every rank sends to rank 0.
type shared struct {
	Losses    map[int]float64 // by step, of the steps for which the rank had samples
	Committed int             // number of steps that were not skipped
	Digest    string          // SHA-256 of the final parameters
}

// model is the network, with or without ddp.
type model interface {
	Forward(x *autograd.Variable) *autograd.Variable
	NoSync(f func() error) error
}

// optimizer is the optimizer that a trainer steps.
type optimizer interface {
	optim.Optimizer
	optim.ScaledStepper
}

var _ optimizer = (*zero.Optimizer[zero.Local])(nil)

// trainer makes the steps of a network.
type trainer struct {
	net    *network
	scaler *amp.Scaler
	model  model
	opt    optimizer
	got    outcome
}

// trainer makes a trainer. The caller must set its model and its optimizer.
func (r *recipe) trainer(net *network) (*trainer, error) {
	scaler, err := amp.NewScaler(&amp.Options{Disabled: !r.scalesLoss, InitScale: 0x1p40, BackoffFactor: 0x1p-28})
	return &trainer{net: net, scaler: scaler, got: outcome{shared: shared{Losses: map[int]float64{}}}}, err
}

// pass is a forward and backward pass over a part of a step's samples.
type pass struct {
	x, y   *autograd.Variable
	branch int
	weight float64 // the factor of the pass's mean loss in the loss of the step
}

// step makes all passes and one optimizer step with the sum of their gradients times factor. Gradients
// are reduced in the last pass.
func (t *trainer) step(ctx context.Context, step int, passes []pass, factor float64) error {
	sum := 0.0
	one := func(p pass) error {
		t.net.middle.now = p.branch
		loss := nn.MSELoss(t.model.Forward(p.x), p.y, nil)
		if err := t.scaler.Scale(autograd.MulScalar(loss, p.weight*factor)).Backward(nil); err != nil {
			return err
		}
		l, err := loss.TryItem(ctx)
		sum += p.weight * l
		return err
	}
	last := len(passes) - 1
	for _, p := range passes[:last] {
		if err := t.model.NoSync(func() error { return one(p) }); err != nil {
			return err
		}
	}
	if err := one(passes[last]); err != nil {
		return err
	}
	if err := t.scaler.Step(t.opt); err != nil {
		return err
	}
	t.scaler.Update()
	t.opt.ZeroGrad()
	t.got.Losses[step] = sum
	return nil
}

// finish returns the outcome. Call it once, after the last step.
func (t *trainer) finish(ctx context.Context) (*outcome, error) {
	t.got.Committed, _ = t.opt.Committed()
	var err error
	if t.got.final, err = compare.Values(ctx, t.net.Parameters(), (*nn.Parameter).Var); err != nil {
		return nil, err
	}
	t.got.Digest = compare.Digest(t.got.final)
	return &t.got, nil
}
