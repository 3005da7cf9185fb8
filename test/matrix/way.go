package main

import (
	"context"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/ddp/zero"
)

// way says how several ranks train a recipe.
type way struct {
	name      string
	passes    int      // of a step; all but the last run in NoSync; 0 means 1
	options   settings // nil means a bucket for each layer
	usesZeRO  bool     // divide the optimizer's state among the ranks
	tolerance float64  // the relative difference that the last losses may have; 0 for a lossless way
}

// settings is a function that makes the options of a model.
type settings func(pg *comm.ProcessGroup) (*ddp.Options, error)

// small is the BucketCapMB that gives each layer a bucket.
const small = 0.01

// train trains the recipe on this rank. Every rank calls it.
func (w way) train(ctx context.Context, j *job, r recipe) (*outcome, error) {
	options := w.options
	if options == nil {
		options = with(ddp.Options{})
	}
	o, err := options(j.ProcessGroup)
	if err != nil {
		return nil, err
	}
	// Each rank draws different weights: ddp.New must give all ranks those of rank 0.
	net, err := r.network(j.Device(), uint64(1+j.Rank()))
	if err != nil {
		return nil, err
	}
	t, err := r.trainer(net)
	if err != nil {
		return nil, err
	}
	var join func(f func() error) error
	if w.usesZeRO {
		m, opt, err := zero.New(net, j.ProcessGroup, r.optimizer, &zero.Options{Options: *o})
		if err != nil {
			return nil, err
		}
		t.model, t.opt = m, opt
		join = func(f func() error) error {
			return m.Join(f, &zero.JoinOptions{Disabled: !r.uneven, DivideByActive: r.dividesByActive})
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
			return m.Join(f, &ddp.JoinOptions{Disabled: !r.uneven, DivideByActive: r.dividesByActive, Optimizer: opt})
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

// loop makes the steps [from, to), until this rank has no samples left.
func (w way) loop(ctx context.Context, j *job, r recipe, t *trainer, from, to int) error {
	n := max(w.passes, 1)
	for step := from; step < to && r.hasSamples(j.Rank(), j.Size(), step); step++ {
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
