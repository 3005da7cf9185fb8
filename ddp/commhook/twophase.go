package commhook

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/profile"
)

// relay is the reductions of a pass that take two communications each, of which
// the second is of what became of the first. The first ones are started while the
// backward pass runs. Nothing tells, without a wait, that one is over, so the
// second ones are started behind the pass: all of them, in the order of the
// buckets, where the first is waited for, in whichever way, on every rank. The
// device computes for one while another is on its way.
type twoPhase struct{ pending []*twoPhaseReduction }

// leg is one reduction.
type twoPhaseReduction struct {
	twoPhase *twoPhase
	first    reducer.Reduction
	// then enqueues, on the compute stream, what is to be done when the first
	// communication is over, and starts the second, whatever fails: the other
	// ranks will. last is what is to be done behind that.
	then   func() (reducer.Reduction, error)
	last   func() error
	second atomic.Pointer[reducer.Reduction] // a trace may look from elsewhere
	err    error
}

func (p *twoPhase) start(first reducer.Reduction, then func() (reducer.Reduction, error), last func() error) reducer.Reduction {
	r := &twoPhaseReduction{twoPhase: p, first: first, then: then, last: last}
	p.pending = append(p.pending, r)
	return r
}

// run starts the second communications.
func (p *twoPhase) run(ctx context.Context) {
	pending := p.pending
	p.pending = nil // a leg's communication may be a relay's too
	for _, r := range pending {
		if r.err = r.first.Wait(ctx); r.err != nil {
			continue // the group is broken, or is about to be
		}
		second, err := r.then()
		r.second.Store(&second)
		r.err = err
	}
}

func (r *twoPhaseReduction) Wait(ctx context.Context) error {
	r.twoPhase.run(ctx)
	if r.err != nil {
		return r.err
	}
	if err := (*r.second.Load()).Wait(ctx); err != nil {
		return err
	}
	return r.last()
}

func (r *twoPhaseReduction) Sync(ctx context.Context) error {
	r.twoPhase.run(ctx)
	under := r.first
	if second := r.second.Load(); second != nil {
		under = *second
	}
	return errors.Join(r.err, under.Sync(ctx))
}

// Times are from when the first communication began until the second was done.
func (r *twoPhaseReduction) Times() (started, ended profile.Moment) {
	started, _ = reducer.Times(r.first)
	if started == nil {
		return nil, nil
	}
	return started, end{r}
}

// end is when a leg's second communication was done.
type end struct{ *twoPhaseReduction }

func (e end) Time() time.Time {
	second := e.second.Load()
	if second == nil {
		return time.Time{}
	}
	if _, ended := reducer.Times(*second); ended != nil {
		return ended.Time()
	}
	return time.Time{}
}
