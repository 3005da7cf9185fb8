package comm

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/goddp/goddp/comm/failure"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/coordinator"
	"github.com/goddp/goddp/internal/flight"
	"github.com/goddp/goddp/internal/flight/analyze"
)

// In its answer to an inquiry, a rank sends its most recent calls. It sends at most `latest`
// calls, and fewer in a large job, so that all ranks together send about latestOfAll calls.
const (
	latest      = 64
	latestOfAll = 1 << 14
)

// inquire is called when the deadline of call w has passed. It asks all ranks what they are
// doing and finds the ranks that caused the delay. Then it asks the coordinator to make the
// timeout the cause on all ranks, unless the coordinator has already chosen another failure.
func (d *watchdogLoop) inquire(w *Work) {
	g := w.group
	late := &failure.TimeoutError{After: d.allowed(w), Running: w.isRunning(), Waiting: d.waits(w)}
	describe := func() *coordinator.Failure { return backend.Describe(backend.OfCall(g.control, &w.call, late)) }
	var others []int
	for r := range d.world.Size {
		if r != d.world.Rank {
			others = append(others, r)
		}
	}
	ctx, cancel := context.WithTimeout(d.ctx, gatherTime)
	defer cancel()
	answers, err := g.control.Inquire(ctx, describe(), others)
	if g.control.Failure() != nil || d.ctx.Err() != nil {
		return
	}
	if err == nil {
		d.diagnose(late, answers)
	}
	for range 2 { // another rank may have inquired first and then been suspended: the second Decide replaces the report of that rank
		g.control.Decide(describe())
		select {
		case <-g.control.Failed():
			return
		case <-time.After(decideTime):
		case <-d.ctx.Done():
			return
		}
	}
	host, rank := g.control.Host()
	late.Diagnosis = fmt.Sprintf("the coordinator, in %s, does not answer", host)
	if rank >= 0 {
		late.Waiting = []int{rank}
	}
	g.control.Abandon(describe())
}

// diagnose finds the ranks that the overdue call really waits for, and sets late.Waiting,
// late.Diagnosis and d.diagnosis. The backend may name a neighbor that itself waits for another
// rank, so diagnose also uses the other ranks' answers.
func (d *watchdogLoop) diagnose(late *failure.TimeoutError, answers map[int][]byte) {
	mine := d.account(late.Waiting)
	mine.DeadlinePassed = true
	accounts := []*flight.Dump{mine}
	for _, r := range slices.Sorted(maps.Keys(answers)) {
		a, err := decodeAccount(answers[r], r, d.world.Size)
		if err != nil {
			d.logf(slog.LevelDebug, "[Rank %d] what rank %d says: %v", d.world.Rank, r, err)
			continue
		}
		accounts = append(accounts, a)
	}
	var report *analyze.Report
	if report, late.Waiting = analyze.Overdue(d.world.Rank, accounts); report.Records == 0 {
		return
	}
	if len(report.Findings) > 0 {
		late.Diagnosis = report.Findings[0].Summary
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.diagnosis = report.String()
}

// answer returns this rank's account, encoded. Package coordinator calls it when another rank
// inquires what this rank is doing.
func (d *watchdogLoop) answer(*coordinator.Failure) []byte { return mustMarshal(d.account(d.waits())) }

// account returns this rank's flight record, reduced to its latest calls, with the ranks that
// calls in flight wait for.
func (d *watchdogLoop) account(waits []int) *flight.Dump {
	a := cmp.Or(d.recorder.Dump(), flight.NoRecord(d.world.Rank, d.world.Size))
	n := min(latest, max(1, latestOfAll/d.world.Size))
	a.Records, a.Waits = a.Records[max(0, len(a.Records)-n):], waits
	return a
}

func mustMarshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Errorf("comm: encoding this rank's account: %w", err)) // cannot happen: v is plain data
	}
	return b
}

// maxAccount is the largest size of an encoded account, in bytes.
const maxAccount = 1 << 20

// decodeAccount decodes the answer of the given rank in a job of `size` ranks. The answer of a
// rank that has left the job is empty.
func decodeAccount(value []byte, rank, size int) (*flight.Dump, error) {
	switch {
	case len(value) == 0:
		return flight.NoRecord(rank, size), nil
	case len(value) > maxAccount:
		return nil, fmt.Errorf("rank %d sent a flight record of %d bytes, want at most %d", rank, len(value), maxAccount)
	}
	a, err := flight.Decode(value)
	if err == nil && (a.Rank != rank || a.WorldSize != size) {
		err = fmt.Errorf("got the record of rank %d of %d, want that of rank %d of %d", a.Rank, a.WorldSize, rank, size)
	}
	return a, err
}

// waits asks the backend which ranks the given calls wait for. Without an argument it asks
// about all calls in flight.
func (d *watchdogLoop) waits(works ...*Work) []int {
	if len(works) == 0 {
		d.mu.Lock()
		for w := d.oldest; w != nil; w = w.younger {
			works = append(works, w)
		}
		d.mu.Unlock()
	}
	answer := make(chan []int, 1)
	d.bounded(askTime, "asking whom calls wait for", func() error {
		var ranks []int
		for _, w := range works {
			if w.hasTask() {
				ranks = append(ranks, w.task.Waiting()...)
			}
		}
		slices.Sort(ranks)
		answer <- slices.Compact(ranks)
		return nil
	})
	select {
	case ranks := <-answer:
		return ranks
	default:
		return nil
	}
}

// hasTask reports whether the backend has been given the call. The backend has not been given
// the call while a callChecker compares the ranks' calls.
func (w *Work) hasTask() bool {
	if !w.group.startMu.TryLock() {
		return false
	}
	defer w.group.startMu.Unlock()
	return w.task != nil
}
