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

func (w way) train(ctx context.Context, pg *comm.ProcessGroup, r recipe) (*outcome, error) {
	options := w.options
	if options == nil {
		options = with(ddp.Options{})
	}
	o, err := options(pg)
	if err != nil {
		return nil, err
	}
	// Other weights elsewhere: wrapping makes the ranks alike.
	net, err := r.network(pg.Device(), uint64(1+pg.Rank()))
	if err != nil {
		return nil, err
	}
	t := &trainer{net: net, scaler: r.scaler()}
	if w.divided {
		m, opt, err := zero.New(net, pg, r.optimizer, o)
		if err != nil {
			return nil, err
		}
		t.model, t.opt = m, opt
		if err := w.loop(ctx, pg, r, t, 0, r.steps); err != nil {
			return nil, err
		}
		return t.finish(ctx)
	}
	m, err := ddp.New(net, pg, o)
	if err != nil {
		return nil, err
	}
	opt := r.optimizer(m.Parameters())
	t.model, t.opt = m, opt
	join := &ddp.JoinOptions{Disabled: !r.uneven, DivideByActive: r.byActive, Optimizer: opt}
	for epoch := range epochs {
		err := m.Join(join, func() error {
			return w.loop(ctx, pg, r, t, epoch*r.steps/epochs, (epoch+1)*r.steps/epochs)
		})
		if err != nil {
			return nil, err
		}
	}
	return t.finish(ctx)
}

// loop makes the steps from up to to, as far as this rank has samples.
func (w way) loop(ctx context.Context, pg *comm.ProcessGroup, r recipe, t *trainer, from, to int) error {
	data, n := draw(pg.Size()), max(w.passes, 1)
	for step := from; step < to && r.has(pg.Rank(), pg.Size(), step); step++ {
		numbers := samplesOf(pg.Rank(), pg.Size(), step)
		var passes []pass
		for i := range n {
			p := part{pg.Rank(), numbers[i*rows/n : (i+1)*rows/n]}
			passes = append(passes, r.pass(pg.Device(), data, step, p, 1/float64(n)))
		}
		if err := t.step(ctx, step, passes, 1); err != nil {
			return err
		}
	}
	return nil
}
