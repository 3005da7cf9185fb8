package comm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/goddp/goddp/comm/failure"
	"github.com/goddp/goddp/comm/internal/watchdog"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/jobenv"
)

// The time limits of the steps of handling a failure. If the coordinator answers, the process
// ends less than two seconds after a deadline has passed, not counting the shutdown hooks.
const (
	announceTime = 300 * time.Millisecond // how long a request to the coordinator may take
	gatherTime   = 700 * time.Millisecond // how long an inquiry waits for the answers of the other ranks
	decideTime   = 200 * time.Millisecond // how long a rank waits for the coordinator to decide which failure is the cause
	reasonTime   = 3 * time.Second        // how long it may take from a deadline until all ranks know the cause
	breakTime    = 200 * time.Millisecond // how long the watchdog waits for a call of its rank to fail, after the coordinator has decided
	recordTime   = 300 * time.Millisecond // how long writing a file may take; the disk may be slow
	askTime      = 100 * time.Millisecond // how long a request to the backend may take; the backend's driver may hang
	logTime      = 100 * time.Millisecond // how long writing a log line may take; the pipe may be full
	lastTime     = 2 * time.Second        // how long writing the last line of a process may take
	leaveTime    = 500 * time.Millisecond // time in which the program may close the group before the watchdog ends the process
)

// DefaultShutdownTimeout bounds the functions given to OnShutdown if Options.ShutdownTimeout is
// 0.
const DefaultShutdownTimeout = 10 * time.Second

// handle gives an event to the core and carries out the core's actions.
func (d *watchdogLoop) handle(e event) {
	switch e.kind {
	case watchdog.Overdue:
		if d.hasEnded(e.call) { // the call ended just after its deadline
			return
		}
	case watchdog.Broke:
		d.failure = d.reason(e.group)
		if d.survives.Load() {
			d.logf(slog.LevelDebug, "[Rank %d] the members of the process group change: %v", d.world.Rank, d.failure)
			return
		}
	}
	for _, a := range d.core.Step(e.kind) {
		switch a {
		case watchdog.Log:
			d.logEvent(e)
		case watchdog.Inquire:
			d.wg.Go(func() { d.inquire(e.call) })
		case watchdog.Record:
			d.bounded(recordTime, "writing the flight record", func() error { return d.record(d.failure.Error(), d.culprit(), d.awaited()...) })
		case watchdog.Report:
			d.bounded(recordTime, "writing the error file", d.errorFile)
		case watchdog.End:
			d.end()
		}
	}
}

// listen waits until the coordinator has decided which failure broke the groups. Then listen
// waits up to breakTime for a call of this rank to fail, because the error of a call says more
// than the decided failure. At last listen notifies loop.
func (d *watchdogLoop) listen(root *group) {
	select {
	case <-root.control.Failed():
	case <-d.ctx.Done():
		return
	}
	select {
	case <-d.broken:
	case <-time.After(breakTime):
	case <-d.ctx.Done():
	}
	d.broke(root)
}

// reason returns why group g broke. It is the error of a failed call of this rank or, if no
// call failed, the failure that the coordinator has decided on.
func (d *watchdogLoop) reason(g *group) error {
	if err := g.failure.Load(); err != nil {
		return *err
	}
	decided := g.control.Failure()
	for _, h := range d.all() {
		if err := h.failure.Load(); err != nil && h.control.Failure() == decided {
			return *err
		}
	}
	return backend.Cause(decided)
}

// logEvent logs an overdue call or a failure. The line about an overdue call begins as
// PyTorch's line does, so that a search for PyTorch's line finds this one.
func (d *watchdogLoop) logEvent(e event) {
	rank := d.world.Rank
	if w := e.call; w != nil {
		d.logf(slog.LevelError, "[Rank %d] Watchdog caught collective operation timeout: %s ran for %d milliseconds before timing out. It is %s",
			rank, w.pytorch(), (d.now() - w.created).Milliseconds(), w.since())
		return
	}
	d.logf(slog.LevelError, "[Rank %d] Watchdog: a collective failed: %v", rank, d.failure)
	if d.culprit() != nil {
		return
	}
	d.mu.Lock()
	diagnosis := d.diagnosis
	d.mu.Unlock()
	for line := range strings.Lines(diagnosis) {
		d.logf(slog.LevelError, "[Rank %d]   %s", rank, strings.TrimSuffix(line, "\n"))
	}
}

// errorFile writes the error file, which tells the launcher why the process is about to end.
func (d *watchdogLoop) errorFile() error {
	if d.mode != AsyncErrorHandling {
		return nil
	}
	file := jobenv.ErrorFile{Message: d.failure.Error(), CausedBy: d.culprit()}
	return file.Write()
}

// culprit returns the rank that caused the failure, or nil if it originated on this rank.
func (d *watchdogLoop) culprit() *int {
	return causedBy(&failure.CallError{Rank: d.world.Rank, Err: d.failure})
}

// awaited returns the ranks that this rank's overdue call waited for, by their numbers in the
// job. It returns nil if the failure is not a timeout of this rank.
func (d *watchdogLoop) awaited() []int {
	var late *failure.TimeoutError
	if d.culprit() != nil || !errors.As(d.failure, &late) {
		return nil
	}
	return late.Waiting
}

// bounded runs f in a goroutine and waits until f has returned, but no longer than limit,
// because f may wait for a disk or a driver that does not answer. bounded logs the error of f,
// or that f has not returned in time.
func (d *watchdogLoop) bounded(limit time.Duration, what string, f func() error) {
	ended := make(chan error, 1)
	go func() {
		err := errGoexit
		defer func() {
			if p := recover(); p != nil {
				panic(p) // it ends the process: nothing else may do that first
			}
			ended <- err
		}()
		err = f()
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	var err error
	select {
	case err = <-ended:
	case <-timer.C:
		err = fmt.Errorf("not done after %v", limit)
	}
	if err != nil {
		d.logf(slog.LevelWarn, "[Rank %d] %s: %v", d.world.Rank, what, err)
	}
}

// logf logs a line. A blocked log must not keep the watchdog from acting.
func (d *watchdogLoop) logf(level slog.Level, format string, args ...any) {
	logf(d.ctx, d.log, level, format, args...)
}

// logf logs a line and waits for at most logTime.
func logf(ctx context.Context, log *slog.Logger, level slog.Level, format string, args ...any) {
	within(logTime, func() { log.Log(ctx, level, fmt.Sprintf(format, args...)) })
}

// within waits for f to write a line, for at most limit, because the reader of the output may be
// blocked.
func within(limit time.Duration, f func()) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f()
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
	}
}

// end runs the shutdown hooks and ends the process. It does neither if the program closes the
// group within leaveTime.
func (d *watchdogLoop) end() {
	timer := time.NewTimer(leaveTime)
	defer timer.Stop()
	select {
	case <-d.leaving:
		return
	case <-timer.C:
	}
	d.mu.Lock()
	hooks, cause := d.hooks, d.failure
	d.mu.Unlock()
	if len(hooks) > 0 {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(d.ctx), d.hookTimeout)
		defer cancel()
		d.bounded(d.hookTimeout, "functions given to OnShutdown", func() error {
			for _, f := range hooks {
				f(ctx, cause)
			}
			return nil
		})
	}
	select {
	case <-d.leaving:
	default:
		d.logf(slog.LevelError, "[Rank %d] the process has not left by itself: ending it, as error mode %v has it. It is here:", d.world.Rank, d.core.Mode)
		d.bounded(recordTime, "writing where the goroutines are", func() error {
			_, err := os.Stderr.WriteString(stacks())
			return err
		})
		d.exit(1)
	}
}

// stuck is called when the watchdog has made no progress for the time d.heartbeat. It writes
// the flight record and, if monitoring is on, ends the process.
func (d *watchdogLoop) stuck() {
	text := fmt.Sprintf("the watchdog got stuck for %v without making progress", d.heartbeat)
	d.logf(slog.LevelError, "[Rank %d] %s", d.world.Rank, text)
	d.bounded(recordTime, "writing the flight record", func() error { return d.record(text, nil) })
	if d.monitoring {
		d.exit(1)
	}
}

// pytorch returns a description of the call in the format of PyTorch's log lines.
func (w *Work) pytorch() string {
	c := &w.call
	return fmt.Sprintf("Work(SeqNum=%d, OpType=%s, NumelIn=%d, NumelOut=%d, Timeout(ms)=%d)",
		c.Seq, strings.ToUpper(c.Kind.String()), c.Src.Len(), c.Dst.Len(), c.Timeout.Milliseconds())
}

// since says in words whether the call runs, and since when.
func (w *Work) since() string {
	waited := time.Duration(w.running.Load())
	if waited == 0 {
		return "queued behind earlier calls or the computation of its data, and has not begun to run"
	}
	return fmt.Sprintf("running since %s, and was queued %v before", w.group.watchdog.startTime.Add(w.created+waited).Format(time.TimeOnly+".000"), waited.Round(time.Microsecond))
}
