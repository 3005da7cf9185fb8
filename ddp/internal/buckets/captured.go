package buckets

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/capture"
	"github.com/goddp/goddp/internal/kernels"
)

// captured is a step that is being captured, and that calls methods of the Reducer.
type captured struct {
	*capture.Step
	refused    error // why the Reducer does nothing in the current pass
	isFinished bool  // a pass that reduces has finished
	isCopied   bool  // the copy of its status to the host is captured
}

// copiedStatus is the event at which the host has the status of a replayed pass. The status is copied as soon
// as all reductions have ended, long before the end of the replay. CUDA's events cannot tell when a part of a
// graph has run. So the host fills hostSums with a byte that no status contains, and polls hostSums. When the status
// has arrived, the reductions have ended too.
type copiedStatus struct {
	words []byte       // the part of hostSums that the copy overwrites
	end   device.Event // behind the whole replay
}

// unlikelyByte occurs in no word of a status with fewer than 500 ranks, because a flag is 0 or 1. With more ranks the
// word of a request to stop may contain it. Then the host waits for the end of the replay.
const unlikelyByte = 0xff

func (a *copiedStatus) isCopied() bool { return bytes.IndexByte(a.words, unlikelyByte) < 0 }

func (a *copiedStatus) Done() (bool, error) {
	if a.isCopied() {
		return true, nil
	}
	return a.end.Done()
}

func (a *copiedStatus) Sync(ctx context.Context) error { return kernels.Poll(ctx, a.Done) }

func (a *copiedStatus) Time() time.Time { return time.Time{} }

// capturing returns the step that is being captured, or nil. When the capture ends, the Reducer is as
// it was before the step.
func (r *Reducer) capturing() *captured {
	c := capture.Of(r.pg.Device())
	switch {
	case c == nil:
		return nil
	case r.captured != nil:
		return r.captured
	}
	r.copies = copyStreamOf(r.pg.Device())
	rec := &captured{Step: c}
	capture.Undo(c, &r.captured)
	capture.Undo(c, &r.passState)
	r.captured = rec
	r.works = slices.Clone(r.works) // the step appends to it
	c.AtEnd(func() { r.endCaptured(rec) })
	c.Before(func() error { return r.join(r.pg.Context(), len(r.works)) }) // the captured work uses the gradients of the pass before
	return rec
}

// isSettled waits for the outcome of the last pass, and reports whether nothing of earlier passes is left to do for the
// next pass.
func (r *Reducer) isSettled() bool {
	r.awaitOutcome()
	return !r.Pending() && !r.isUnread && r.left == nil && r.order == nil && !r.isStale
}

// beginCaptured is called when a backward pass of a captured step begins. After an error the Reducer does
// nothing in this pass.
func (r *Reducer) beginCaptured(rec *captured) error {
	switch {
	case r.hook != nil && !reducer.IsStateless(r.hook):
		return rec.Refuse("the communication hook %s keeps state", hookName(r.hook))
	case r.scan != nil:
		return rec.Refuse("CheckNonFinite is set")
	case r.unused != UnusedMissing:
		return rec.Refuse("the reducer looks for unused parameters")
	case r.joining:
		return rec.Refuse("ranks may leave early (Join)")
	case !r.isSettled():
		return rec.NotYet("the buckets are not in their final order, or the last pass failed")
	}
	rec.Require(func() bool { return r.isSettled() && !r.joining })
	return nil
}

// finishCaptured ends a backward pass of a captured step. reduces says that the pass reduces, and failed that it
// would raise this rank's flag. cause is the error that made the pass fail, or nil.
func (r *Reducer) finishCaptured(rec *captured, reduces, failed bool, cause error) error {
	switch {
	case cause != nil:
		return rec.Fail(cause)
	case failed:
		rec.NotYet("a gradient is missing")
		return nil
	case !reduces:
		rec.Before(func() error {
			r.stats.Accumulated++
			return nil
		})
		return nil
	}
	rec.isFinished = true
	if err := r.copyCaptured(); err != nil {
		return err
	}
	r.pending = r.pg.Device().Compute().Mark()
	if r.pg.Size() == 1 {
		r.finishAlone(rec)
		return nil
	}
	works, status := slices.Clone(r.works), &copiedStatus{words: r.status.hostSums.Host()[:r.status.words.Bytes()+r.status.refusal.Len()]}
	rec.Before(func() error {
		for i := range status.words {
			status.words[i] = unlikelyByte
		}
		r.stats.Passes++
		r.number++
		if r.requested = r.stopToRequest(); r.requested != 0 {
			return r.status.requestStop(r.requested)
		}
		return nil
	})
	rec.After(func(err error) error {
		if err != nil {
			r.pg.Abort(err) // the other ranks wait for the reductions of this replay
			return nil
		}
		r.works, r.joined = append(r.works[:0], works...), len(works)
		status.end = r.pg.Device().Compute().Mark()
		r.pending = status
		return nil
	})
	return nil
}

// finishAlone ends a captured pass of a group of one rank. No other rank can raise a flag, so the outcome of a
// replay is known when it starts. The host still waits until at most one earlier replay is under way, because the
// deadline of a replay's calls counts from its launch, even while the replay waits for earlier ones.
func (r *Reducer) finishAlone(rec *captured) {
	var ends [2]device.Event // of the last replays, the older one first
	rec.Before(func() error {
		if ends[0] != nil {
			if err := r.awaitDevice(r.pg.Context(), ends[0], "the step before the last"); err != nil {
				return err
			}
		}
		r.stats.Passes++
		r.number++
		r.requested = r.stopToRequest()
		return nil
	})
	rec.After(func(err error) error {
		if err != nil {
			r.pg.Abort(err)
			return nil
		}
		ends[0], ends[1] = ends[1], r.pg.Device().Compute().Mark()
		r.err = nil
		r.attend(nil)
		r.agreeToStop(r.requested)
		return nil
	})
}

// copyStream is a device's stream for the copies of statuses in captured passes. It ends with the device.
type copyStream struct{ device.Stream } // nil before the first copy

type copyStreamKey struct{}

func copyStreamOf(dev device.Device) *copyStream {
	return kernels.Of(dev).Values().Get(copyStreamKey{}, func() any { return &copyStream{} }).(*copyStream)
}

// copyCaptured captures the copy of the status to the host once the compute stream waits for all reductions.
// The copy is on a separate stream, so nothing in the graph waits for it.
func (r *Reducer) copyCaptured() error {
	rec := r.captured
	if rec == nil || !rec.isFinished || rec.isCopied || r.joined < len(r.works) || r.pg.Size() == 1 {
		return nil
	}
	rec.isCopied = true
	compute := r.pg.Device().Compute()
	if r.copies.Stream == nil {
		s, err := r.pg.Device().NewStream(false)
		if err != nil {
			return err
		}
		r.copies.Stream = s
	}
	if err := r.copies.WaitFor(compute.Mark()); err != nil {
		return err
	}
	return r.status.copyOn(r.copies.Stream)
}

// endCaptured makes the compute stream wait for everything that the Reducer has captured on other streams.
func (r *Reducer) endCaptured(rec *captured) {
	if !rec.isFinished {
		return
	}
	err := r.join(r.pg.Context(), len(r.works))
	if err == nil && rec.isCopied {
		err = r.pg.Device().Compute().WaitFor(r.copies.Mark())
	}
	if err != nil {
		rec.Refuse("the end of a pass: %w", err)
	}
}

var _ reducer.Reduction = (*comm.Work)(nil) // the works of a captured step stand for the works of its last replay
