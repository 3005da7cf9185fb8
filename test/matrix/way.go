package main

import (
	"context"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/ddp/zero"
)

// way is how several ranks train a recipe.
type way struct {
	name    string
	passes  int      // of a step, all but the last within NoSync; 0: 1
	options settings // nil: a bucket for each layer
	divided bool     // the optimizer's state
	lossy   float64  // how far, as a part of them, the last losses may be off; 0: nothing is lost
}

// settings make the options of a model.
type settings func(pg *comm.ProcessGroup) (*ddp.Options, error)

// small is the BucketCapMB that gives each layer a bucket.
const small = 0.01

// train leads one rank through all steps.
func (w way) train(ctx context.Context, j *job, r recipe) (*outcome, error) {
	options := w.options
	if options == nil {
		options = with(ddp.Options{})
	}
	o, err := options(j.ProcessGroup)
	if err != nil {
		return nil, err
	}
	// Other weights elsewhere: wrapping makes the ranks alike.
	net, err := r.network(j.Device(), uint64(1+j.Rank()))
	if err != nil {
		return nil, err
	}
	t, err := r.trainer(net)
	if err != nil {
		return nil, err
	}
	var join func(f func() error) error
	if w.divided {
		m, opt, err := zero.New(net, j.ProcessGroup, r.optimizer, o)
		if err != nil {
			return nil, err
		}
		t.model, t.opt = m, opt
		join = func(f func() error) error {
			return m.Join(&zero.JoinOptions{Disabled: !r.uneven, DivideByActive: r.byActive}, f)
		}
	} else {
		m, err := ddp.New(net, j.ProcessGroup, o)
		if err != nil {
			return nil, err
		}
		opt, err := r.optimizer(m.Parameters())
		if err != nil {
			return nil, err
		}
		t.model, t.opt = m, opt
		join = func(f func() error) error {
			return m.Join(&ddp.JoinOptions{Disabled: !r.uneven, DivideByActive: r.byActive, Optimizer: opt}, f)
		}
	}
	for epoch := range epochs {
		err := join(func() error { return w.loop(ctx, j, r, t, epoch*r.steps/epochs, (epoch+1)*r.steps/epochs) })
		if err != nil {
			return nil, err
		}
	}
	return t.finish(ctx)
}

// loop makes the steps from up to to, as far as this rank has samples.
func (w way) loop(ctx context.Context, j *job, r recipe, t *trainer, from, to int) error {
	n := max(w.passes, 1)
	for step := from; step < to && r.has(j.Rank(), j.Size(), step); step++ {
		numbers := samplesOf(j.Rank(), j.Size(), step)
		var passes []pass
		for i := range n {
			p := part{j.Rank(), numbers[i*rows/n : (i+1)*rows/n]}
			passes = append(passes, j.pass(&r, step, p, 1/float64(n)))
		}
		if err := t.step(ctx, step, passes, 1); err != nil {
			return err
		}
	}
	return nil
}
