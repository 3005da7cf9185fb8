package commhook

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/profile"
)

// twoPhase holds the two-phase reductions of a pass. Each communicates twice, and the second communication needs
// the result of the first. The first communications start during the backward pass. The host cannot know
// whether one is over without waiting, so the second communications start after the pass. When the engine first
// waits for a reduction, all second communications start, on every rank in the order of the buckets. The device
// computes for one reduction while another communicates.
type twoPhase struct{ pending []*twoPhaseReduction }

// twoPhaseReduction is one reduction.
type twoPhaseReduction struct {
	twoPhase *twoPhase
	first    reducer.Reduction
	// then enqueues, on the compute stream, the work between the communications, and starts the
	// second communication. It must start the communication even if the work fails, because the other ranks start theirs.
	// last enqueues the work after the second communication.
	then   func() (reducer.Reduction, error)
	last   func() error
	second atomic.Pointer[reducer.Reduction] // atomic, because a trace may read it from another goroutine
	err    error
}

func (p *twoPhase) start(first reducer.Reduction, then func() (reducer.Reduction, error), last func() error) reducer.Reduction {
	r := &twoPhaseReduction{twoPhase: p, first: first, then: then, last: last}
	p.pending = append(p.pending, r)
	return r
}

// run waits for the first communications and starts the second ones.
func (p *twoPhase) run(ctx context.Context) {
	pending := p.pending
	p.pending = nil // then may start another two-phase reduction
	for _, r := range pending {
		if r.err = r.first.Wait(ctx); r.err != nil {
			continue // the group is broken or will be aborted
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

// Times returns the start of the first communication and the end of the second.
func (r *twoPhaseReduction) Times() (started, ended profile.Moment) {
	started, _ = reducer.Times(r.first)
	if started == nil {
		return nil, nil
	}
	return started, end{r}
}

// end is the moment at which the second communication of a reduction was done.
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
