package train

import (
	"context"
	"errors"
	"time"

	"github.com/goddp/goddp/internal/telemetry"
	"github.com/goddp/goddp/profile"
)

// tracedSteps is the number of steps in a trace.
const tracedSteps = 5

// tracePath returns where this rank writes its trace, or "". The loss of a rank may change it.
func (r *run) tracePath() string {
	if r.Trace == "" {
		return ""
	}
	return profile.RankPath(r.Trace, r.pg.Rank())
}

// trace is called before each batch. It starts the trace before the first traced step and ends it after the last one.
// It waits for the device, so that the trace contains exactly what is enqueued in between, including by evaluations
// and checkpoints.
func (r *run) trace(ctx context.Context) error {
	if r.recorder == nil || r.gathered > 0 || r.step != r.traceAt && r.step != r.traceAt+tracedSteps {
		return nil
	}
	if err := r.pg.Device().Compute().Sync(ctx); err != nil {
		return err
	}
	if r.step == r.traceAt {
		r.wasOn = r.recorder.On()
		r.recorder.Start()
		r.isTracing, r.lapped = true, time.Now()
		return nil
	}
	return r.writeTrace()
}

// writeTrace ends the trace and writes it.
func (r *run) writeTrace() error {
	recorder := r.recorder
	r.recorder, r.isTracing = nil, false
	if !r.wasOn {
		recorder.Stop()
	}
	return recorder.WriteFile(r.tracePath(), r.pg.Rank())
}

// lap is called at the end of each part of a step. In a trace, a part in which the device gets no work is a span of the host.
func (r *run) lap(part string) {
	r.meter.Lap(part)
	if !r.isTracing {
		return
	}
	begin := r.lapped
	r.lapped = time.Now()
	switch part {
	case telemetry.Data, telemetry.Log, telemetry.Evaluation, telemetry.Checkpoint, telemetry.Callback:
		r.recorder.Add(profile.Span{Track: profile.Host, Name: part, Begin: profile.At(begin), End: profile.At(r.lapped)})
	}
}

// finishTrace is called at the end of each attempt, with its error or nil. If steps are still being traced, it writes
// what was recorded so far. It waits for the device only after a run without error, because a device that has failed
// may never be idle.
func (r *run) finishTrace(ctx context.Context, err error) error {
	if !r.isTracing {
		if r.recorder != nil && err == nil && r.pg.Rank() == 0 {
			r.pg.Log().Warn("train: there is no trace, because the run ended before its first step", "steps", r.step, "first", r.traceAt+1, "file", r.tracePath())
		}
		return nil
	}
	var lost error
	if err == nil {
		lost = r.pg.Device().Compute().Sync(ctx)
	}
	return errors.Join(lost, r.writeTrace())
}
