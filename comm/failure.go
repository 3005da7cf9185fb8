package comm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/goddp/goddp/comm/internal/watchdog"
	"github.com/goddp/goddp/internal/backend"
)

// How long the steps of acting on a failure may take: together less than two
// seconds from a deadline to the end, but for the shutdown hooks, where the coordinator
// answers.
const (
	announceTime = 300 * time.Millisecond // a question to the coordinator
	gatherTime   = 700 * time.Millisecond // until the other ranks have said what they do
	decideTime   = 200 * time.Millisecond // until the coordinator has decided
	reasonTime   = 3 * time.Second        // from a deadline until all know the reason, at most
	breakTime    = 200 * time.Millisecond // until a call has failed by what was decided
	recordTime   = 300 * time.Millisecond // writing files, on a disk that may be slow
	askTime      = 100 * time.Millisecond // the backend, whose driver may hang
	logTime      = 100 * time.Millisecond // a line, through a pipe that may be full
	leaveTime    = 500 * time.Millisecond // for the program to close the group by itself
)

// DefaultShutdownTimeout bounds the functions given to OnShutdown.
const DefaultShutdownTimeout = 10 * time.Second

// handle does what the core says to an event.
func (d *watchdogLoop) handle(e event) {
	switch e.kind {
	case watchdog.Overdue:
		if d.hasEnded(e.call) { // in the last moment
			return
		}
	case watchdog.Broke:
		d.failure = d.reason(e.group)
	}
	for _, a := range d.core.Step(e.kind) {
		switch a {
		case watchdog.Say:
			d.say(e)
		case watchdog.Inquire:
			d.wg.Go(func() { d.inquire(e.call) })
		case watchdog.Record:
			d.bounded(recordTime, "writing the flight record", func() error { return d.record(d.failure.Error(), d.awaited()...) })
		case watchdog.Report:
			d.bounded(recordTime, "writing the error file", d.errorFile)
		case watchdog.End:
			d.end()
		}
	}
}

// listen waits until the coordinator has decided what broke all groups. A call that fails by
// that says more: the backend has a moment to end those in flight, and the program to make one.
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

// reason is why a group broke: what ended a call of this rank, or what the coordinator told.
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

// say logs what happened. The line about a deadline begins as PyTorch's does,
// for those who search for it.
func (d *watchdogLoop) say(e event) {
	rank := d.world.Rank
	if w := e.call; w != nil {
		d.logf(slog.LevelError, "[Rank %d] Watchdog caught collective operation timeout: %s ran for %d milliseconds before timing out. It is %s",
			rank, w.pytorch(), (d.now() - w.created).Milliseconds(), w.since())
		return
	}
	d.logf(slog.LevelError, "[Rank %d] Watchdog: a collective failed: %v", rank, d.failure)
	if found := d.found(); found != nil {
		for line := range strings.Lines(found.text) {
			d.logf(slog.LevelError, "[Rank %d]   %s", rank, strings.TrimSuffix(line, "\n"))
		}
	}
}

// errorFile tells the launcher why the process is about to end. A rank that
// was told of another's failure is only an echo of it.
func (d *watchdogLoop) errorFile() error {
	if d.mode != AsyncErrorHandling {
		return nil
	}
	return writeErrorFile(d.failure.Error(), "", causedBy(&CallError{Rank: d.world.Rank, Err: d.failure}))
}

// awaited is the ranks of the job that this rank's overdue call waited for, if it is the
// failure.
func (d *watchdogLoop) awaited() []int {
	var late *TimeoutError
	if d.found() == nil || !errors.As(d.failure, &late) {
		return nil
	}
	return late.Waiting
}

// bounded runs f, and gives up on it after limit: it may wait for a disk, or a
// driver, that does not answer.
func (d *watchdogLoop) bounded(limit time.Duration, what string, f func() error) {
	ended := make(chan error, 1)
	go func() { ended <- f() }()
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

// logf logs, unless whoever reads the log does not: that must not keep the
// watchdog from acting.
func (d *watchdogLoop) logf(level slog.Level, format string, args ...any) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		d.log.Log(context.Background(), level, fmt.Sprintf(format, args...))
	}()
	timer := time.NewTimer(logTime)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
	}
}

// end ends the process, unless the program is about to.
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
		ctx, cancel := context.WithTimeout(context.Background(), d.hookTimeout)
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
		d.logf(slog.LevelError, "[Rank %d] the process has not left by itself: ending it, as error mode %v has it. It is here:", d.world.Rank, d.mode)
		d.bounded(recordTime, "writing where the goroutines are", func() error {
			_, err := os.Stderr.WriteString(stacks())
			return err
		})
		d.exit(1)
	}
}

// stuck ends the process because the watchdog has made no progress for the heartbeat.
func (d *watchdogLoop) stuck() {
	text := fmt.Sprintf("the watchdog got stuck for %v without making progress", d.heartbeat)
	d.logf(slog.LevelError, "[Rank %d] %s", d.world.Rank, text)
	d.bounded(recordTime, "writing the flight record", func() error { return d.record(text) })
	if d.monitoring {
		d.exit(1)
	}
}

// pytorch is a call in the words of PyTorch's log line.
func (w *Work) pytorch() string {
	c := &w.call
	return fmt.Sprintf("Work(SeqNum=%d, OpType=%s, NumelIn=%d, NumelOut=%d, Timeout(ms)=%d)",
		c.Seq, strings.ToUpper(c.Kind.String()), c.Src.Len(), c.Dst.Len(), c.Timeout.Milliseconds())
}

// since tells, for people, where a call is and since when.
func (w *Work) since() string {
	waited := time.Duration(w.running.Load())
	if waited == 0 {
		return "queued behind earlier calls or the computation of its data, and has not begun to run"
	}
	return fmt.Sprintf("running since %s, and was queued %v before", w.group.watchdog.startTime.Add(w.created+waited).Format(time.TimeOnly+".000"), waited.Round(time.Microsecond))
}
