package elastic_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/goddp/goddp/elastic"
	"github.com/goddp/goddp/test/survive/job"
)

var (
	alone  = job.Options{Zero: true}               // each shard is on one rank
	copied = job.Options{Zero: true, Copies: true} // each shard is on two ranks
)

// With copies of the shards, the ranks that are left of a job with a divided optimizer come to the bits to which those
// of a job without one come, also when they are two, and one.
func TestRunDivided(t *testing.T) {
	deaths := map[int]map[job.Phase]int{10: {job.Forward: 3}, 20: {job.Backward: 0}, 30: {job.Forward: 2}}
	die := func(w *worker, step int, p job.Phase) {
		if victim, dies := deaths[step][p]; dies && victim == w.number {
			w.die()
		}
	}
	want := hashesOf(t, train(t, job.Options{}, 4, 40, 0, nil, die))
	if got := hashesOf(t, train(t, copied, 4, 40, 0, nil, die)); len(got) != 1 || !slices.Equal(got, want) {
		t.Errorf("the states are %v, want %v", got, want)
	}
}

// A rank is lost while others make a step's updates.
func TestRunDividedAfterALossWithinUpdates(t *testing.T) {
	deaths := map[int]map[job.Phase]int{11: {job.Optimizer: 1}, 20: {job.Optimizer: 3}}
	hashes := hashesOf(t, train(t, copied, 4, 40, 0, nil, func(w *worker, step int, p job.Phase) {
		if victim, dies := deaths[step][p]; dies && victim == w.number {
			w.die()
		}
	}))
	if len(hashes) != 2 || hashes[0] != hashes[1] {
		t.Errorf("the states are %v", hashes)
	}
}

// Without copies, a shard is lost with its rank. All ranks go on from the last checkpoint, and come to the bits to
// which those of a job without shards come, of which no rank has the state. Without a checkpoint it is an error.
func TestRunDividedWithoutCopies(t *testing.T) {
	const steps, lost = 20, 17 // the job saves a checkpoint at step 15
	die := func() func(w *worker, step int, p job.Phase) {
		var committed sync.WaitGroup // until the others have the position and the random numbers after the same step, which the checkpoint lacks
		committed.Add(2)
		return func(w *worker, step int, p job.Phase) {
			switch {
			case step != lost || p != job.Forward || w.pg.Epoch() > 1:
			case w.number == 1:
				committed.Wait()
				w.die()
			default:
				committed.Done()
			}
		}
	}
	none := func(ctx context.Context, w *worker) error { return nil }
	for _, restore := range []func(ctx context.Context, w *worker) error{nil, none} {
		for _, w := range train(t, alone, 3, steps, 0, restore, die()) {
			var e *elastic.LostStateError
			if w.number != 1 && (!errors.As(w.err, &e) || e.Step != lost) {
				t.Errorf("worker %d: got %v, want that step %d is lost", w.number, w.err, lost)
			}
		}
	}
	want := hashesOf(t, train(t, job.Options{}, 3, steps, 0, restoring(make([]int, 3)), breaking(lost)))
	restored := make([]int, 3)
	if got := hashesOf(t, train(t, alone, 3, steps, 0, restoring(restored), die())); len(got) != 2 || !slices.Equal(got, want) || restored[0] != 15 || restored[2] != 15 {
		t.Errorf("the states are %v after the restored steps %v, want %v after 15", got, restored, want)
	}
}
