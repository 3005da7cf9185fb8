package comm

import (
	"context"
	"fmt"
	"slices"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/capture"
	"github.com/goddp/goddp/internal/jobenv"
)

// capturedCall is a call in a captured step: see [capture.Step]. Each replay starts a new call,
// with its own sequence number, deadline and entry in the flight record.
type capturedCall struct {
	backend.Captured
	capture *capture.Step
	replay  *Work // the call of the last replay; nil before the first one, which follows the capture
}

// capturedCalls are the calls of a group in a captured step. A replay starts all of them at once, before its
// launch, so that each has a deadline if the launch hangs.
type capturedCalls struct {
	*group
	backend  backend.Capturer
	works    []*Work
	captured []backend.Captured // by work
	next     *startedCalls      // the calls of the next replay; nil before the first one
	launches []backend.Task     // the calls of the replay that is about to be launched, or nil
}

// startedCalls are the calls that one replay starts. They are allocated while the GPU runs the previous replay,
// because between two replays the GPU waits for the host.
type startedCalls struct {
	works []Work
	calls []*backend.Call // the calls that works wait for
}

// captureCall captures the call of w instead of starting it.
func (pg *ProcessGroup) captureCall(w *Work, r *capture.Step) {
	b, ok := pg.backend.(backend.Capturer)
	_, isChecked := pg.backend.(*callChecker)
	switch {
	case isChecked:
		w.err = r.Refuse("%v: Options.CheckCalls or "+jobenv.DebugVar+"=DETAIL compares each call", &w.call)
		return
	case !ok:
		w.err = r.Refuse("%v: the backend %s cannot capture calls", &w.call, pg.backend.Name())
		return
	case pg.watchdog.mode == BlockingWait:
		w.err = r.Refuse("%v: calls in the mode BlockingWait wait on the host", &w.call)
		return
	}
	captured, err := b.Capture(&w.call, r)
	switch {
	case err != nil && pg.Failed(): // a later step may be captured, in the group that Reconfigure makes
		w.err = r.Fail(fmt.Errorf("%v: %w", &w.call, err))
		return
	case err != nil:
		w.err = r.Refuse("%v: %w", &w.call, err)
		return
	}
	w.captured = &capturedCall{Captured: captured, capture: r}
	all := pg.capturedCalls
	if all == nil {
		all = &capturedCalls{group: pg.group, backend: b}
		pg.capturedCalls = all
		r.AtEnd(func() { all.group.capturedCalls = nil })
		r.Before(all.start)
		r.After(func(err error) error {
			all.launched(all.dev.Compute().Mark(), err)
			return nil
		})
	}
	all.works, all.captured = append(all.works, w), append(all.captured, captured)
}

// prepare allocates the calls of the next replay. start numbers them.
func (c *capturedCalls) prepare() {
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
func (c *capturedCalls) start() error {
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
		c.works[i].captured.replay = w
		w.call.After, w.created = after, now
		w.deadline = now + min(w.call.Timeout, far-now)
		c.number(&w.call)
		w.entry = c.record.Begin(&w.call, d.epoch+int64(now))
		d.started(w)
	}
	tasks, err := c.backend.StartCaptured(c.captured, replay.calls)
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

// launched is called after the latest started replay was launched, or after its launch failed with err. The
// replay ends before the event end.
func (c *capturedCalls) launched(end device.Event, err error) {
	tasks := c.launches
	c.launches = nil
	if tasks == nil {
		return
	}
	c.backend.LaunchedCaptured(tasks, end, err)
	if err == nil {
		c.prepare()
	}
}

// wait implements Work.Wait for a captured call. While the step is being captured, it makes the captured work wait.
func (c *capturedCall) wait(ctx context.Context, w *Work) error {
	if capture.Of(w.group.dev) == c.capture {
		return c.Join(w.group.dev.Compute())
	}
	return c.replay.Wait(ctx)
}

// sync implements Work.Sync for a captured call.
func (c *capturedCall) sync(ctx context.Context, w *Work) error {
	if r := capture.Of(w.group.dev); r == c.capture {
		return r.Refuse("Sync of %v waits for the call", &w.call)
	}
	return c.replay.Sync(ctx)
}
