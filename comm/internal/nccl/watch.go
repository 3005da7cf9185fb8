//go:build cgo && linux

package nccl

import (
	"slices"
	"sort"
	"time"

	"github.com/goddp/goddp/comm/failure"
	"github.com/goddp/goddp/internal/backend"
)

// How often watch polls the events of calls, and NCCL's asynchronous errors.
const (
	pollInterval       = 2 * time.Millisecond
	asyncErrorInterval = 50 * time.Millisecond
)

// watch polls pending calls and breaks the group if one cannot end. It sleeps while no call is
// pending.
func (g *Group) watch() {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	var asked time.Time
	for {
		select {
		case <-g.wake:
			ticker.Reset(pollInterval)
			continue
		case <-ticker.C:
		case <-g.ctx.Done():
			return
		}
		busy, err := g.pollCalls()
		if now := time.Now(); err == nil && now.Sub(asked) >= asyncErrorInterval {
			asked = now
			err = g.asyncError()
		}
		if err != nil {
			g.fail(err)
			return
		}
		if !busy {
			ticker.Stop()
			g.isWatchAsleep.Store(true)
			if g.state.Pending() > 0 && g.isWatchAsleep.CompareAndSwap(true, false) { // a call was started in the meantime
				ticker.Reset(pollInterval)
			}
		}
	}
}

// pollCalls removes calls that are done from the pending ones. It returns an error if a call cannot
// end, and reports whether calls are pending.
func (g *Group) pollCalls() (busy bool, err error) {
	for _, cs := range g.commStreams() {
		t, err := cs.advance()
		if err != nil {
			return true, g.state.CallError(t.call, err)
		}
		if t == nil {
			continue
		}
		if rank, ok := g.waitsForLeaver(t); ok {
			return true, g.state.CallError(t.call, &failure.PeerLostError{Peer: g.jobRank(rank), Left: true})
		}
	}
	return g.state.Pending() > 0, nil
}

// advance updates the states of a stream's calls, which end in order. It removes the calls that are
// done and returns the first call that is not.
func (cs *commStream) advance() (*task, error) {
	cs.seek()
	var some [32]*task
	reached := some[:0]
	var next *task
	var err error
	for {
		if next = cs.at(len(reached)); next == nil {
			break
		}
		ok, failed := next.reached()
		if !ok && !next.done() {
			err = failed
			break
		}
		reached = append(reached, next)
	}
	quiet := len(reached) > 0 && cs.group.cfg.Control.Quiet() // one query suffices for all of them
	for i, t := range reached {
		t.setProgress(quiet)
		if !t.done() {
			cs.drop(i)
			return t, nil
		}
	}
	cs.drop(len(reached))
	return next, err
}

// seek finds the last complete event by binary search. The stream then knows that all earlier
// events are complete, so the driver gets few queries, which would delay the goroutines that start
// calls.
func (cs *commStream) seek() {
	cs.group.mu.Lock()
	n := len(cs.pending)
	cs.group.mu.Unlock()
	sort.Search(n, func(i int) bool {
		t := cs.at(i)
		if t == nil {
			return true
		}
		cs.group.mu.Lock()
		end := t.end
		cs.group.mu.Unlock()
		if end == nil {
			return true
		}
		done, err := end.Done()
		return !done || err != nil
	})
}

// at returns the stream's i-th pending call, or nil.
func (cs *commStream) at(i int) *task {
	cs.group.mu.Lock()
	defer cs.group.mu.Unlock()
	if i >= len(cs.pending) {
		return nil
	}
	return cs.pending[i]
}

// drop removes the first n pending calls. It stops at a call that is not done.
func (cs *commStream) drop(n int) {
	cs.group.mu.Lock()
	defer cs.group.mu.Unlock()
	n = min(n, len(cs.pending))
	if i := slices.IndexFunc(cs.pending[:n], func(t *task) bool { return t.state < backend.Done }); i >= 0 {
		n = i
	}
	cs.pending = slices.Delete(cs.pending, 0, n)
}

func (g *Group) commStreams() []*commStream {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.streams)
}

// asyncError returns an error that NCCL detected on one of the communicators.
func (g *Group) asyncError() error {
	g.mu.Lock()
	comms := g.comms
	var first *task
	for _, cs := range g.streams {
		if len(cs.pending) > 0 && first == nil {
			first = cs.pending[0]
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
