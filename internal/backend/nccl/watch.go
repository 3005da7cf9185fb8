//go:build cgo && linux

package nccl

import (
	"slices"
	"sort"
	"time"

	"github.com/goddp/goddp/internal/backend"
)

// What watch looks at, and how often: events, and errors that NCCL noticed.
const (
	tick      = 2 * time.Millisecond
	asyncTick = 50 * time.Millisecond
)

// watch reports when a pending call cannot end well. It sleeps while none is
// pending.
func (g *Group) watch() {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	var asked time.Time
	for {
		select {
		case <-g.wake:
			ticker.Reset(tick)
			continue
		case <-ticker.C:
		case <-g.ctx.Done():
			return
		}
		busy, err := g.sweep()
		if now := time.Now(); err == nil && now.Sub(asked) >= asyncTick {
			asked = now
			err = g.asyncError()
		}
		if err != nil {
			g.fail(err)
			return
		}
		if !busy {
			ticker.Stop()
			g.asleep.Store(true)
			if g.state.Pending() > 0 && g.asleep.CompareAndSwap(true, false) { // it was started meanwhile
				ticker.Reset(tick)
			}
		}
	}
}

// sweep lets go of the calls that are done, and finds one that cannot be. It
// tells whether any is pending.
func (g *Group) sweep() (busy bool, err error) {
	for _, l := range g.allLanes() {
		t, err := l.advance()
		if err != nil {
			return true, g.state.CallError(t.call, err)
		}
		if t == nil {
			continue
		}
		if rank, ok := g.deserted(t); ok {
			return true, g.state.CallError(t.call, &backend.PeerLostError{Peer: g.inJob(rank), Left: true})
		}
	}
	return g.state.Pending() > 0, nil
}

// advance looks at a lane's calls, which end in order, and returns the first
// that is not done. It lets go of those before.
func (l *lane) advance() (*task, error) {
	l.seek()
	var some [32]*task
	reached := some[:0]
	var next *task
	var err error
	for {
		if next = l.at(len(reached)); next == nil {
			break
		}
		ok, failed := next.reached()
		if !ok && !next.done() {
			err = failed
			break
		}
		reached = append(reached, next)
	}
	quiet := len(reached) > 0 && l.group.cfg.Control.Quiet() // once for all of them
	for i, t := range reached {
		t.settle(quiet)
		if !t.done() {
			l.drop(i)
			return t, nil
		}
	}
	l.drop(len(reached))
	return next, err
}

// seek asks the driver how far the stream is: of many calls it asks for few, and
// the stream's events then know of all those before. Whoever starts calls
// meanwhile has to share the driver with it.
func (l *lane) seek() {
	l.group.mu.Lock()
	n := len(l.pending)
	l.group.mu.Unlock()
	sort.Search(n, func(i int) bool {
		t := l.at(i)
		if t == nil {
			return true
		}
		l.group.mu.Lock()
		end := t.end
		l.group.mu.Unlock()
		if end == nil {
			return true
		}
		done, err := end.Done()
		return !done || err != nil
	})
}

// at is the i-th of the lane's pending calls, or nil.
func (l *lane) at(i int) *task {
	l.group.mu.Lock()
	defer l.group.mu.Unlock()
	if i >= len(l.pending) {
		return nil
	}
	return l.pending[i]
}

// drop lets go of the first n pending calls but for those that are not done.
func (l *lane) drop(n int) {
	l.group.mu.Lock()
	defer l.group.mu.Unlock()
	n = min(n, len(l.pending))
	if i := slices.IndexFunc(l.pending[:n], func(t *task) bool { return t.state < backend.Done }); i >= 0 {
		n = i
	}
	l.pending = slices.Delete(l.pending, 0, n)
}

func (g *Group) allLanes() []*lane {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.lanes)
}

// asyncError is what NCCL noticed on any of the communicators.
func (g *Group) asyncError() error {
	g.mu.Lock()
	comms := g.comms
	var first *task
	for _, l := range g.lanes {
		if len(l.pending) > 0 && first == nil {
			first = l.pending[0]
		}
	}
	g.mu.Unlock()
	for _, c := range comms {
		if err := c.asyncError(); err != nil {
			if first != nil {
				return g.state.CallError(first.call, err)
			}
			return err
		}
	}
	return nil
}
