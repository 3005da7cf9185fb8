package comm

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

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
// timeout the cause on all ranks. If the coordinator has already chosen another failure as the
// cause, the other failure stays the cause.
func (d *watchdogLoop) inquire(w *Work) {
	g := w.group
	late := &backend.TimeoutError{After: d.allowed(w), State: w.progress(), Waiting: d.waits(w)}
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
func (d *watchdogLoop) diagnose(late *backend.TimeoutError, answers map[int][]byte) {
	var dumps []*flight.Dump
	if mine := d.dump(); mine != nil {
		mine.DeadlinePassed = true
		dumps = append(dumps, mine)
	}
	waits := map[int][]int{d.world.Rank: late.Waiting}
	for _, r := range slices.Sorted(maps.Keys(answers)) {
		a, dump, err := decodeAccount(answers[r], r, d.world.Size)
		if err != nil {
			d.logf(slog.LevelDebug, "[Rank %d] what rank %d says: %v", d.world.Rank, r, err)
			continue
		}
		waits[r] = a.Waits
		if dump != nil {
			dumps = append(dumps, dump)
		}
	}
	report := analyze.Analyze(dumps)
	late.Waiting = report.Awaited(d.world.Rank, waits)
	if len(dumps) == 0 {
		return
	}
	if len(report.Findings) > 0 {
		late.Diagnosis = report.Findings[0].Summary
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.diagnosis = report.String()
}

// account is a rank's answer to an inquiry. Dump is its flight record, reduced to its latest
// calls. Waits are the ranks that its calls in flight wait for.
type account struct {
	Dump  json.RawMessage `json:",omitempty"`
	Waits []int           `json:",omitempty"`
}

// answer returns this rank's account, encoded. Package coordinator calls it when another rank
// inquires what this rank is doing.
func (d *watchdogLoop) answer(*coordinator.Failure) []byte {
	a := account{Waits: d.waits()}
	if dump := d.dump(); dump != nil {
		a.Dump = mustMarshal(dump)
	}
	return mustMarshal(a)
}

// dump returns this rank's flight record, reduced to its latest calls. It returns nil if the
// rank keeps no flight record.
func (d *watchdogLoop) dump() *flight.Dump {
	dump := d.recorder.Dump()
	if dump != nil {
		n := min(latest, max(1, latestOfAll/d.world.Size))
		dump.Records = dump.Records[max(0, len(dump.Records)-n):]
	}
	return dump
}

func mustMarshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Errorf("comm: what this rank does: %w", err)) // cannot happen: v is plain data
	}
	return b
}

// maxAccount is the largest size of an encoded account, in bytes.
const maxAccount = 1 << 20

// decodeAccount decodes the answer of the given rank in a job of `size` ranks. It accepts an
// empty answer, which is the answer of a rank that has left the job.
func decodeAccount(value []byte, rank, size int) (a account, dump *flight.Dump, err error) {
	if len(value) == 0 {
		return a, nil, nil
	}
	if len(value) > maxAccount {
		return a, nil, fmt.Errorf("an account of %d bytes, at most %d", len(value), maxAccount)
	}
	if err := json.Unmarshal(value, &a); err != nil {
		return a, nil, err
	}
	if slices.ContainsFunc(a.Waits, func(r int) bool { return r < 0 || r >= size }) {
		return a, nil, fmt.Errorf("it waits for %v of %d ranks", a.Waits, size)
	}
	if len(a.Dump) == 0 {
		return a, nil, nil
	}
	if dump, err = flight.Decode(a.Dump); err == nil && (dump.Rank != rank || dump.WorldSize != size) {
		err = fmt.Errorf("a record of rank %d of %d, want rank %d of %d", dump.Rank, dump.WorldSize, rank, size)
	}
	return a, dump, err
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
