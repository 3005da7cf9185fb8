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

// outcome is what training led to, on one rank or in a single process.
type outcome struct {
	shared
	final [][]float64 // parameters
}

// shared is the part that rank 0 learns of every rank.
type shared struct {
	Losses    map[int]float64 // by step, of those that the rank had samples for
	Committed int             // steps that were not skipped
	Digest    string          // SHA-256 of the final parameters
}

// model is the network, wrapped or by itself.
type model interface {
	Forward(x *autograd.Variable) *autograd.Variable
	NoSync(f func() error) error
}

// optimizer is what drives a step.
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

// trainer is one that lacks its model and its optimizer.
func (r *recipe) trainer(net *network) (*trainer, error) {
	scaler, err := amp.NewScaler(&amp.Options{Disabled: !r.scaled, InitScale: 0x1p40, BackoffFactor: 0x1p-28})
	return &trainer{net: net, scaler: scaler, got: outcome{shared: shared{Losses: map[int]float64{}}}}, err
}

// pass is one through a part of a step's samples.
type pass struct {
	x, y   *autograd.Variable
	branch int
	weight float64 // of its mean loss among those of the step
}

// step goes through all passes and changes the parameters by the sum of their
// gradients times factor. Gradients are reduced behind the last.
func (t *trainer) step(ctx context.Context, step int, passes []pass, factor float64) error {
	sum := 0.0
	one := func(p pass) error {
		t.net.middle.now = p.branch
		loss := nn.MSELoss(t.model.Forward(p.x), p.y)
		if err := t.scaler.Scale(autograd.MulScalar(loss, p.weight*factor)).Backward(); err != nil {
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

// finish is the outcome, when all steps are made.
func (t *trainer) finish(ctx context.Context) (*outcome, error) {
	t.got.Committed, _ = t.opt.Committed()
	var err error
	if t.got.final, err = compare.Values(ctx, t.net.Parameters(), (*nn.Parameter).Var); err != nil {
		return nil, err
	}
	t.got.Digest = compare.Digest(t.got.final)
	return &t.got, nil
}
