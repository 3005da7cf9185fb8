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
type relay struct{ legs []*leg }

// leg is one reduction.
type leg struct {
	relay *relay
	first reducer.Reduction
	// then enqueues, on the compute stream, what is to be done when the first
	// communication is over, and starts the second, whatever fails: the other
	// ranks will. last is what is to be done behind that.
	then   func() (reducer.Reduction, error)
	last   func() error
	second atomic.Pointer[reducer.Reduction] // a trace may look from elsewhere
	err    error
}

func (r *relay) start(first reducer.Reduction, then func() (reducer.Reduction, error), last func() error) reducer.Reduction {
	l := &leg{relay: r, first: first, then: then, last: last}
	r.legs = append(r.legs, l)
	return l
}

// run starts the second communications.
func (r *relay) run(ctx context.Context) {
	legs := r.legs
	r.legs = nil // a leg's communication may be a relay's too
	for _, l := range legs {
		if l.err = l.first.Wait(ctx); l.err != nil {
			continue // the group is broken, or is about to be
		}
		second, err := l.then()
		l.second.Store(&second)
		l.err = err
	}
}

func (l *leg) Wait(ctx context.Context) error {
	l.relay.run(ctx)
	if l.err != nil {
		return l.err
	}
	if err := (*l.second.Load()).Wait(ctx); err != nil {
		return err
	}
	return l.last()
}

func (l *leg) Sync(ctx context.Context) error {
	l.relay.run(ctx)
	under := l.first
	if second := l.second.Load(); second != nil {
		under = *second
	}
	return errors.Join(l.err, under.Sync(ctx))
}

// Times are from when the first communication began until the second was done.
func (l *leg) Times() (begun, ended profile.Moment) {
	begun, _ = reducer.Times(l.first)
	if begun == nil {
		return nil, nil
	}
	return begun, end{l}
}

// end is when a leg's second communication was done.
type end struct{ *leg }

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
