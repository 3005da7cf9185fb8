package comm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/goddp/goddp/comm/backend"
	"github.com/goddp/goddp/comm/flight/analyze"
	"github.com/goddp/goddp/comm/watchdog"
)

// How long the steps of acting on a failure may take: together less than two
// seconds from a deadline to the end, but for the shutdown hooks.
const (
	announceTime = 300 * time.Millisecond // telling the other ranks through the store
	gatherTime   = 700 * time.Millisecond // until they have answered with their records
	awaitTime    = 2 * time.Second        // until the rank that announced a failure has found its cause
	breakTime    = 200 * time.Millisecond // until the backend has heard of it too
	recordTime   = 300 * time.Millisecond // writing files, on a disk that may be slow
	askTime      = 100 * time.Millisecond // the backend, whose driver may hang
	abortTime    = time.Second            // the same
	logTime      = 100 * time.Millisecond // a line, through a pipe that may be full
	leaveTime    = 500 * time.Millisecond // for the program to close the group by itself
)

// DefaultShutdownTimeout bounds the functions given to OnShutdown.
const DefaultShutdownTimeout = 10 * time.Second

// Keys in the group's store: the first failure, the same when its cause is
// found, who logs what the records mean, and the ranks' records.
const (
	keyFailure = "failure"
	keySaid    = "failure/said"
	keyCause   = "failure/cause"
	keyRecord  = "failure/record/"
)

// announcement is the first failure of a job, as the rank that met it tells
// the others.
type announcement struct {
	Rank int // among all processes
	Text string
	// Asks tells that the others' records are asked for; then the cause follows.
	Asks bool
}

// maxAnnouncement bounds what is read of an announcement, and of the cause that may
// follow, in bytes.
const maxAnnouncement = 1 << 20

// maxText bounds the text of a failure that a rank tells the others, in bytes. JSON
// takes up to six bytes for one.
const maxText = maxAnnouncement / 8

func (a announcement) encode() ([]byte, error) {
	a.Text = cutText(a.Text)
	return json.Marshal(a)
}

func cutText(text string) string { return text[:min(len(text), maxText)] }

// decodeAnnouncement reads what a rank of a job of this size announced.
func decodeAnnouncement(value []byte, size int) (a announcement, err error) {
	if len(value) > maxAnnouncement {
		return a, fmt.Errorf("an announcement of %d bytes, at most %d", len(value), maxAnnouncement)
	}
	if err := json.Unmarshal(value, &a); err != nil {
		return a, err
	}
	if a.Rank < 0 || a.Rank >= size {
		return a, fmt.Errorf("an announcement of rank %d of %d", a.Rank, size)
	}
	return a, nil
}

// handle does what the core says to an event.
func (d *watch) handle(e event) {
	switch e.kind {
	case watchdog.Overdue:
		if d.isOver(e.call) { // in the last moment
			return
		}
		if d.overdue == nil || d.mode == NoErrorHandling {
			d.overdue = e.call
		}
	case watchdog.Told, watchdog.Waited:
		d.first = e.first
	case watchdog.Gathered:
		d.dumped, d.report, d.traced = e.dumps, e.report, e.traced
	}
	actions := d.core.Step(e.kind)
	if len(actions) > 0 {
		d.failure = d.reason()
	}
	for _, a := range actions {
		d.do(a, e.kind)
	}
}

func (d *watch) do(a watchdog.Action, because watchdog.Event) {
	switch a {
	case watchdog.Say:
		d.say(because)
	case watchdog.Announce:
		d.announce(because)
	case watchdog.Gather:
		group, waits, store := d.overdue.group, d.waiting(d.overdue), !d.mute
		d.wg.Go(func() { d.compare(group, waits, store) })
	case watchdog.Record:
		d.bounded(recordTime, "writing the flight record", func() error { return d.record(d.failure.Error(), d.awaited()...) })
	case watchdog.Report:
		d.bounded(recordTime, "writing the error file", d.errorFile)
	case watchdog.Publish:
		if d.first.Asks {
			d.publish(d.recorder.Dump())
		}
	case watchdog.Await:
		first := d.first
		d.wg.Go(func() { d.await(first) })
	case watchdog.Abort:
		d.abort()
	case watchdog.End:
		d.end()
	}
}

// say logs what happened. The line about a deadline begins as PyTorch's does,
// for those who search for it.
func (d *watch) say(because watchdog.Event) {
	rank := d.world.Rank
	if because == watchdog.Overdue {
		w := d.overdue
		d.logf(slog.LevelError, "[Rank %d] Watchdog caught collective operation timeout: %s ran for %d milliseconds before timing out. It is %s",
			rank, w.pytorch(), (d.now() - w.created).Milliseconds(), w.since())
		return
	}
	d.logf(slog.LevelError, "[Rank %d] Watchdog: a collective failed: %v", rank, d.failure)
	if d.report == nil || !d.speaks() {
		return
	}
	for line := range strings.Lines(d.report.String()) {
		d.logf(slog.LevelError, "[Rank %d]   %s", rank, strings.TrimSuffix(line, "\n"))
	}
}

// speaks tells whether this rank logs what the records mean: of those that have
// compared them the first does, for all.
func (d *watch) speaks() bool {
	if d.mute || d.world.Size == 1 {
		return true
	}
	ctx, cancel := context.WithTimeout(d.ctx, announceTime)
	defer cancel()
	mine := []byte(strconv.Itoa(d.world.Rank))
	first, err := d.kv.CompareAndSet(ctx, keySaid, nil, mine)
	return err != nil || bytes.Equal(first, mine)
}

// errorFile tells the launcher why the process is about to end. A rank that
// was told of another's failure is only an echo of it.
func (d *watch) errorFile() error {
	if d.mode != AsyncErrorHandling {
		return nil
	}
	echo := echoOf(d.failure)
	if echo == nil && d.overdue == nil && d.first.Text != "" {
		echo = &d.first.Rank
	}
	return writeErrorFile(d.failure.Error(), "", echo)
}

// reason is the failure as this rank knows it by now.
func (d *watch) reason() error {
	cause := d.why()
	switch {
	case cause != nil:
		return cause
	case d.overdue != nil:
		return d.lateness()
	}
	return &AbortedError{By: d.first.Rank, Err: errors.New(d.first.Text)}
}

// lateness is the error of the overdue call.
func (d *watch) lateness() error {
	w := d.overdue
	late := &backend.TimeoutError{After: d.allowed(w), State: w.progress()}
	if d.report != nil && len(d.report.Findings) > 0 {
		late.Diagnosis = d.report.Findings[0].Summary
	}
	switch culprits := d.culprits(); {
	case w.group.parent == nil && d.mute && !d.world.AgentStore && d.world.Rank != 0:
		late.Waiting, late.Diagnosis = []int{0}, "rank 0, which hosts the job's store, does not answer"
	case w.group.parent == nil && len(culprits) > 0: // whose ranks are the job's
		late.Waiting = culprits
	default:
		late.Waiting = d.waiting(w)
	}
	return w.group.explain(&backend.CallError{Rank: w.group.rank, Call: w.call.Fingerprint(), Name: w.call.Name, Err: late})
}

// culprits is the ranks of the job that are waited for, as their records tell.
// What the backend knows may be a neighbour that itself waits.
func (d *watch) culprits() (ranks []int) {
	if d.report == nil || !d.speaks() {
		return nil
	}
	for _, f := range d.report.Findings {
		switch f.Kind {
		case analyze.Missing, analyze.Suspended, analyze.Dead, analyze.Left, analyze.Behind, analyze.Late, analyze.Compute:
			ranks = append(ranks, f.Ranks...)
		}
	}
	slices.Sort(ranks)
	return slices.Compact(ranks)
}

// waiting is the ranks of its group that a call waits for: as those told, or as the
// backend has it, or else those that have not called it.
func (d *watch) waiting(w *Work) (ranks []int) {
	if len(d.traced) > 0 {
		return d.traced
	}
	inStart := !w.group.startMu.TryLock() // where calls are compared
	if !inStart {
		w.group.startMu.Unlock() // task is set
		answer := make(chan []int, 1)
		d.bounded(askTime, "asking whom a call waits for", func() error {
			answer <- w.task.Waiting()
			return nil
		})
		select {
		case ranks = <-answer:
		default:
		}
	}
	if k := w.call.Kind; len(ranks) == 0 && (inStart || w.progress() == Running) && k != backend.Send && k != backend.Recv {
		ranks = absent(w, d.dumped)
	}
	return ranks
}

// awaited is the ranks of the job that the overdue call waited for, if it is
// the failure and their numbers are known.
func (d *watch) awaited() []int {
	var late *TimeoutError
	if d.overdue == nil || d.overdue.group.parent != nil || !errors.As(d.failure, &late) {
		return nil
	}
	return late.Waiting
}

// announce tells the other ranks of this one's failure, unless one of them was
// first. The backend tells them too, those that have calls in flight.
func (d *watch) announce(because watchdog.Event) {
	if d.world.Size == 1 {
		return
	}
	ctx, cancel := context.WithTimeout(d.ctx, announceTime)
	defer cancel()
	mine, err := announcement{Rank: d.world.Rank, Text: d.failure.Error(), Asks: because == watchdog.Overdue}.encode()
	if err == nil {
		var now []byte
		now, err = d.kv.CompareAndSet(ctx, keyFailure, nil, mine)
		d.announced = err == nil && bytes.Equal(now, mine)
	}
	if err != nil {
		d.mute = true
		d.logf(slog.LevelDebug, "[Rank %d] telling the other ranks of a failure: %v", d.world.Rank, err)
	}
}

// explain tells the ranks that were asked for their records what the cause is.
func (d *watch) explain() {
	if !d.announced {
		return
	}
	ctx, cancel := context.WithTimeout(d.ctx, announceTime)
	defer cancel()
	if err := d.kv.Set(ctx, keyCause, []byte(cutText(d.failure.Error()))); err != nil {
		d.logf(slog.LevelDebug, "[Rank %d] telling the other ranks the cause of a failure: %v", d.world.Rank, err)
	}
}

// listen waits for another rank to announce a failure.
func (d *watch) listen() {
	value, err := d.kv.Get(d.ctx, keyFailure)
	var first announcement
	if err == nil {
		first, err = decodeAnnouncement(value, d.world.Size)
	}
	switch {
	case d.ctx.Err() != nil:
	case err != nil:
		d.logf(slog.LevelDebug, "[Rank %d] listening for failures of other ranks: %v", d.world.Rank, err)
	case first.Rank != d.world.Rank:
		d.tell(event{kind: watchdog.Told, first: first})
	}
}

// await waits until the rank that announced a failure knows the cause, and a
// moment more for the backend.
func (d *watch) await(first announcement) {
	if first.Asks {
		ctx, cancel := context.WithTimeout(d.ctx, awaitTime)
		defer cancel()
		if text, err := d.kv.Get(ctx, keyCause); err == nil {
			first.Text = cutText(string(text))
		}
	}
	select {
	case <-time.After(breakTime):
	case <-d.ctx.Done():
	}
	d.tell(event{kind: watchdog.Waited, first: first})
}

// bounded runs f, and gives up on it after limit: it may wait for a disk, or a
// driver, that does not answer.
func (d *watch) bounded(limit time.Duration, what string, f func() error) {
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
func (d *watch) logf(level slog.Level, format string, args ...any) {
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

// abort breaks all groups.
func (d *watch) abort() {
	d.explain()
	cause, groups := d.failure, d.all()
	d.bounded(abortTime, "breaking the groups", func() error {
		var wg sync.WaitGroup
		for _, g := range groups {
			wg.Go(func() { g.backend.Abort(g.own(cause)) })
		}
		wg.Wait()
		return nil
	})
}

// end ends the process, unless the program is about to.
func (d *watch) end() {
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
func (d *watch) stuck() {
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
	begun := time.Duration(w.running.Load())
	if begun == 0 {
		return "queued behind earlier calls or the computation of its data, and has not begun to run"
	}
	return fmt.Sprintf("running since %s, and was queued %v before", w.group.watch.begun.Add(w.created+begun).Format(time.TimeOnly+".000"), begun.Round(time.Microsecond))
}
