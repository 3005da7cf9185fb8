package comm

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/goddp/goddp/comm/backend"
	"github.com/goddp/goddp/comm/watchdog"
)

// How long the steps of acting on a failure may take: together less than two
// seconds from a deadline to the end, but for the shutdown hooks.
const (
	announceTime = 300 * time.Millisecond // telling the other ranks through the store
	gatherTime   = 700 * time.Millisecond // until they have answered with their records
	awaitTime    = 3 * time.Second        // until the rank that announced a failure has broken the group
	recordTime   = 300 * time.Millisecond // writing files, on a disk that may be slow
	askTime      = 100 * time.Millisecond // the backend, whose driver may hang
	abortTime    = time.Second            // the same
	leaveTime    = 500 * time.Millisecond // for the program to close the group by itself
)

// DefaultShutdownTimeout bounds the functions given to OnShutdown.
const DefaultShutdownTimeout = 10 * time.Second

// Keys in the group's store: the first failure, and the ranks' records.
const (
	keyFailure = "failure"
	keyRecord  = "failure/record/"
)

// announcement is the first failure of a job, as the rank that met it tells
// the others.
type announcement struct {
	Rank   int // among all processes
	Text   string
	Answer bool // the others' records are asked for
}

// handle does what the core says to an event.
func (d *watch) handle(e event) {
	switch e.kind {
	case watchdog.Overdue:
		if d.overdue == nil || d.mode == NoErrorHandling {
			d.overdue = e.call
		}
	case watchdog.Told:
		d.first = e.first
	case watchdog.Gathered:
		d.records = e.records
	}
	for _, a := range d.core.Step(e.kind) {
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
		d.wg.Go(func() { d.tell(event{kind: watchdog.Gathered, records: d.gather()}) })
	case watchdog.Record:
		d.bounded(recordTime, "writing the flight record", d.record)
	case watchdog.Publish:
		d.publish()
	case watchdog.Await:
		d.patience.Reset(awaitTime)
	case watchdog.Abort:
		d.abort()
	case watchdog.End:
		d.end()
	}
}

// say logs what happened.
func (d *watch) say(because watchdog.Event) {
	switch because {
	case watchdog.Overdue:
		d.log.Error(fmt.Sprintf("[Rank %d] Watchdog caught collective operation timeout: %s ran for %d milliseconds before timing out.",
			d.world.Rank, d.overdue.pytorch(), time.Since(d.overdue.created).Milliseconds()), "call", d.overdue.call.String(), "state", d.overdue.progress())
	default:
		d.log.Error(fmt.Sprintf("[Rank %d] Watchdog: a collective failed: %v", d.world.Rank, d.reason()))
	}
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
	return fmt.Errorf("%w: by rank %d: %s", ErrAborted, d.first.Rank, d.first.Text)
}

// lateness is the error of the overdue call.
func (d *watch) lateness() error {
	w := d.overdue
	late := &backend.TimeoutError{After: w.call.Timeout, State: w.progress()}
	if w.started.Load() {
		d.bounded(askTime, "asking whom a call waits for", func() error {
			late.Waiting = w.task.Waiting()
			return nil
		})
	}
	return &backend.CallError{Rank: w.group.rank, Call: w.call.Fingerprint(), Name: w.call.Name, Err: late}
}

// announce tells the other ranks of this one's failure, unless one of them was
// first.
func (d *watch) announce(because watchdog.Event) {
	if d.world.Size == 1 {
		return
	}
	ctx, cancel := context.WithTimeout(d.ctx, announceTime)
	defer cancel()
	value, err := json.Marshal(announcement{Rank: d.world.Rank, Text: d.reason().Error(), Answer: because == watchdog.Overdue})
	if err == nil {
		_, err = d.kv.CompareAndSet(ctx, keyFailure, nil, value)
	}
	if err != nil { // the backend tells them too, if it can
		d.log.Debug("telling the other ranks of a failure", "rank", d.world.Rank, "error", err)
	}
}

// listen waits for another rank to announce a failure.
func (d *watch) listen() {
	value, err := d.kv.Get(d.ctx, keyFailure)
	var first announcement
	if err == nil {
		err = json.Unmarshal(value, &first)
	}
	switch {
	case d.ctx.Err() != nil:
	case err != nil:
		d.log.Debug("listening for failures of other ranks", "rank", d.world.Rank, "error", err)
	case first.Rank != d.world.Rank:
		d.tell(event{kind: watchdog.Told, first: first})
	}
}

// bounded runs f, and gives up on it after limit: it may wait for a disk that
// does not answer.
func (d *watch) bounded(limit time.Duration, what string, f func() error) {
	ended := make(chan error, 1)
	go func() { ended <- f() }()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case err := <-ended:
		if err != nil {
			d.log.Warn(what, "rank", d.world.Rank, "error", err)
		}
	case <-timer.C:
		d.log.Warn(what, "rank", d.world.Rank, "error", fmt.Errorf("not done after %v", limit))
	}
}

// abort breaks all groups.
func (d *watch) abort() {
	cause := d.reason()
	d.mu.Lock()
	groups := d.groups
	d.mu.Unlock()
	d.bounded(abortTime, "breaking the groups", func() error {
		var wg sync.WaitGroup
		for _, g := range groups {
			wg.Go(func() { g.backend.Abort(cause) })
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
	hooks := d.hooks
	d.mu.Unlock()
	if len(hooks) > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), d.hookTimeout)
		defer cancel()
		d.bounded(d.hookTimeout, "functions given to OnShutdown", func() error {
			for _, f := range hooks {
				f(ctx, d.reason())
			}
			return nil
		})
	}
	select {
	case <-d.leaving:
	default:
		d.log.Error(fmt.Sprintf("[Rank %d] To avoid data inconsistency, we are taking the entire process down.", d.world.Rank))
		d.exit(1)
	}
}

// stuck ends the process because the watchdog has made no progress since.
func (d *watch) stuck(since time.Time) {
	d.log.Error(fmt.Sprintf("[Rank %d] the watchdog got stuck for %v without making progress", d.world.Rank, time.Since(since).Round(time.Millisecond)))
	d.bounded(recordTime, "writing the flight record", d.record)
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
