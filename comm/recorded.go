package comm

import (
	"context"
	"slices"

	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/capture"
)

// recordedCall is a call in a recorded step: see [capture.Recording]. Each replay starts a call of its own,
// with a number, a deadline and an entry in the flight record.
type recordedCall struct {
	backend.Recorded
	recording *capture.Recording
	replay    *Work // the call of the last replay; nil before the first one, which follows the recording
}

// recordCall records the call of w instead of starting it.
func (pg *ProcessGroup) recordCall(w *Work, r *capture.Recording) {
	b, ok := pg.backend.(backend.Recorder)
	switch {
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
	r.Before(func() error {
		replay := &Work{call: w.call, group: pg.group}
		replay.call.Calls = slices.Clone(w.call.Calls)
		for i, c := range replay.call.Calls {
			member := *c
			replay.call.Calls[i] = &member
		}
		replay.call.After = pg.point()
		w.recorded.replay = replay
		pg.submit(replay, recorded)
		if replay.err != nil {
			return replay.report(replay.err)
		}
		return nil
	})
	r.After(func(err error) error {
		recorded.Launched(pg.dev.Compute().Mark(), err)
		return nil
	})
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
