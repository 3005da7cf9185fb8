package comm

import (
	"context"
	"slices"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/capture"
	"github.com/goddp/goddp/internal/jobenv"
)

// recordedCall is a call in a recorded step: see [capture.Recording]. Each replay starts a call of its own,
// with a number, a deadline and an entry in the flight record.
type recordedCall struct {
	backend.Recorded
	recording *capture.Recording
	replay    *Work // the call of the last replay; nil before the first one, which follows the recording
}

// recordedCalls are the calls of a group in a recorded step. A replay starts all of them at once, before its
// launch, so that each has a deadline if the launch hangs.
type recordedCalls struct {
	*group
	backend  backend.Recorder
	works    []*Work
	recorded []backend.Recorded // by work
	next     *startedCalls      // those of the next replay; nil before the first one
	launches []backend.Task     // those of the replay that is about to be launched, or nil
}

// startedCalls are the calls that one replay starts. They are allocated while the GPU runs the replay before,
// because between two replays the GPU waits for the host.
type startedCalls struct {
	works []Work
	calls []*backend.Call // those of works
}

// recordCall records the call of w instead of starting it.
func (pg *ProcessGroup) recordCall(w *Work, r *capture.Recording) {
	b, ok := pg.backend.(backend.Recorder)
	_, isChecked := pg.backend.(*callChecker)
	switch {
	case isChecked:
		w.err = r.Refuse("%v: Options.CheckCalls or "+jobenv.DebugVar+"=DETAIL compares each call", &w.call)
		return
	case !ok:
		w.err = r.Refuse("%v: the backend %s cannot record calls", &w.call, pg.backend.Name())
		return
	case pg.watchdog.mode == BlockingWait:
		w.err = r.Refuse("%v: the mode is BlockingWait", &w.call)
		return
	}
	recorded, err := b.Record(&w.call, r)
	if err != nil {
		w.err = r.Refuse("%v: %w", &w.call, err)
		return
	}
	w.recorded = &recordedCall{Recorded: recorded, recording: r}
	all := pg.recordedCalls
	if all == nil {
		all = &recordedCalls{group: pg.group, backend: b}
		pg.recordedCalls = all
		r.AtEnd(func() { all.group.recordedCalls = nil })
		r.Before(all.start)
		r.After(func(err error) error {
			all.launched(all.dev.Compute().Mark(), err)
			return nil
		})
	}
	all.works, all.recorded = append(all.works, w), append(all.recorded, recorded)
}

// prepare allocates the calls of the next replay. start numbers them.
func (c *recordedCalls) prepare() {
	n := len(c.works)
	c.next = &startedCalls{make([]Work, n), make([]*backend.Call, n)}
	for i, w := range c.works {
		next := &c.next.works[i]
		next.call, next.group = w.call, c.group
		next.call.Calls = slices.Clone(w.call.Calls)
		for k, m := range next.call.Calls {
			member := *m
			next.call.Calls[k] = &member
		}
		next.call.Observer = (*observed)(next)
		c.next.calls[i] = &next.call
	}
}

// start starts the calls of a replay.
func (c *recordedCalls) start() error {
	if c.next == nil {
		c.prepare()
	}
	replay, d := c.next, c.watchdog
	c.next = nil
	after, now := c.point(c.timed.Load()), d.now()
	c.startMu.Lock()
	defer c.startMu.Unlock()
	for i := range replay.works {
		w := &replay.works[i]
		c.works[i].recorded.replay = w
		w.call.After, w.created = after, now
		w.deadline = now + min(w.call.Timeout, far-now)
		c.number(&w.call)
		w.entry = c.record.Begin(&w.call, d.epoch+int64(now))
		d.started(w)
	}
	tasks, err := c.backend.StartRecorded(c.recorded, replay.calls)
	if err != nil {
		for i := range replay.works {
			c.notStarted(&replay.works[i], err)
		}
		w := &replay.works[0]
		return w.report(w.err)
	}
	for i, t := range tasks {
		replay.works[i].task = t
	}
	c.launches = tasks
	return nil
}

// launched is called when the replay that was started last was launched, and ends before the event end, or
// when that failed with err.
func (c *recordedCalls) launched(end device.Event, err error) {
	tasks := c.launches
	c.launches = nil
	if tasks == nil {
		return
	}
	c.backend.LaunchedRecorded(tasks, end, err)
	if err == nil {
		c.prepare()
	}
}

// wait is Wait of a recorded call. While the step is being recorded, it makes the recorded work wait.
func (c *recordedCall) wait(ctx context.Context, w *Work) error {
	if capture.Of(w.group.dev) == c.recording {
		return c.Join(w.group.dev.Compute())
	}
	return c.replay.Wait(ctx)
}

// sync is Sync of a recorded call.
func (c *recordedCall) sync(ctx context.Context, w *Work) error {
	if r := capture.Of(w.group.dev); r == c.recording {
		return r.Refuse("Sync of %v waits for the call", &w.call)
	}
	return c.replay.Sync(ctx)
}
