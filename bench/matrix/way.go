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
	passes  int                                               // of a step, all but the last within NoSync; 0: 1
	options func(pg *comm.ProcessGroup) (*ddp.Options, error) // nil: small buckets
	divided bool                                              // the optimizer's state
	lossy   float64                                           // how far the last losses may be off, as a part of them; 0: it loses nothing
}

// small is a bucket for each layer.
const small = 0.01

func (w way) train(ctx context.Context, pg *comm.ProcessGroup, r recipe) (*outcome, error) {
	o := &ddp.Options{BucketCapMB: small}
	if w.options != nil {
		var err error
		if o, err = w.options(pg); err != nil {
			return nil, err
		}
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
		if err := w.loop(ctx, pg, r, t); err != nil {
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
	join := &ddp.JoinOptions{Disabled: r.inputs == nil, DivideByActive: r.byActive, Optimizer: opt}
	if err := m.Join(join, func() error { return w.loop(ctx, pg, r, t) }); err != nil {
		return nil, err
	}
	return t.finish(ctx)
}

// loop makes the steps that this rank has samples for.
func (w way) loop(ctx context.Context, pg *comm.ProcessGroup, r recipe, t *trainer) error {
	data, n := draw(pg.Size()), max(w.passes, 1)
	for step := range r.steps {
		if !r.has(pg.Rank(), pg.Size(), step) {
			break
		}
		numbers := of(pg.Rank(), pg.Size(), step)
		var passes []pass
		for i := range n {
			x, y := data.take(pg.Device(), r.inputType(), numbers[i*rows/n:(i+1)*rows/n])
			p := pass{x: x, y: y, weight: 1 / float64(n)}
			if r.branch != nil {
				p.branch = r.branch(pg.Rank(), step)
			}
			passes = append(passes, p)
		}
		if err := t.step(ctx, passes, 1); err != nil {
			return err
		}
	}
	return nil
}
