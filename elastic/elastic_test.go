package elastic_test

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goddp/goddp/checkpoint"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/elastic"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/test/survive/job"
)

func TestMain(m *testing.M) { testkit.Main(m, nil) }

// worker is a rank that survives failures.
type worker struct {
	number int
	pg     *comm.ProcessGroup
	*job.Job
	folder string // of the checkpoints
	cancel context.CancelFunc
	// The outcome; zero if the worker has died.
	hash string // of its state
	err  error
}

// die loses the worker, as if its process had ended. It does not return.
func (w *worker) die() {
	backend.Kill(w.pg)
	w.cancel()
	runtime.Goexit()
}

// train makes steps on workers. A call times out after the timeout, or after the default if that is 0. restore may be nil. atPhase is called when a phase of a step begins.
func train(t *testing.T, how job.Options, ranks, steps int, timeout time.Duration, restore func(ctx context.Context, w *worker) error, atPhase func(w *worker, step int, p job.Phase)) (workers []*worker) {
	o := &comm.Options{Timeout: timeout, Log: slog.New(slog.DiscardHandler)}
	backend.Survive(o)
	groups, err := comm.Local(ranks, o)
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	var wg sync.WaitGroup
	for i, pg := range groups {
		w := &worker{number: i, pg: pg, folder: folder}
		workers = append(workers, w)
		wg.Go(func() {
			defer pg.Close()
			if w.Job, w.err = job.New(pg, how); w.err != nil {
				return
			}
			var ctx context.Context
			ctx, w.cancel = context.WithCancel(t.Context())
			defer w.cancel()
			w.Phase = func(p job.Phase) {
				step, _ := w.Opt.Committed()
				atPhase(w, step, p)
			}
			c := &elastic.Config{State: w.State(), Data: w.Loader}
			if restore != nil {
				c.Restore = func(ctx context.Context) error { return restore(ctx, w) }
			}
			err := elastic.Run(ctx, pg, c, func(ctx context.Context) error { return w.Loop(ctx, folder, steps) })
			if ctx.Err() == nil {
				w.err = err
				w.hash, _ = w.Hash(ctx)
			}
		})
	}
	wg.Wait()
	return workers
}

// hashesOf returns the hashes of the workers that have not died.
func hashesOf(t *testing.T, workers []*worker) (hashes []string) {
	for _, w := range workers {
		if w.err != nil {
			t.Errorf("worker %d: %v", w.number, w.err)
		}
		if w.hash != "" {
			hashes = append(hashes, w.hash)
		}
	}
	return hashes
}

// Ranks are lost at different points of a step. The others make the same steps from then on, with the same states.
func TestRun(t *testing.T) {
	deaths := map[int]map[job.Phase]int{10: {job.Forward: 3}, 11: {job.Backward: 0}, 20: {job.Optimizer: 1}}
	hashes := hashesOf(t, train(t, job.Options{}, 4, 40, 0, nil, func(w *worker, step int, p job.Phase) {
		if victim, dies := deaths[step][p]; dies && victim == w.number {
			w.die()
		}
	}))
	if len(hashes) == 0 || len(slices.Compact(hashes)) != 1 {
		t.Errorf("the states are %v", hashes)
	}
}

// A rank stalls until a call of the others has timed out. All go on together, and come to the bits to which they come
// undisturbed, with a divided optimizer too.
func TestRunAfterATimeout(t *testing.T) {
	synctest.Test(t, runAfterATimeout)
}

func runAfterATimeout(t *testing.T) {
	const ranks, steps, stalled = 3, 20, 12
	want := hashesOf(t, train(t, job.Options{}, ranks, steps, 0, nil, func(*worker, int, job.Phase) {}))
	for _, how := range []job.Options{{}, alone} {
		var timedOut sync.WaitGroup
		timedOut.Add(ranks - 1)
		got := hashesOf(t, train(t, how, ranks, steps, 0, nil, func(w *worker, step int, p job.Phase) {
			switch {
			case step == steps-1 && w.pg.Epoch() != 2:
				t.Errorf("worker %d: step %d in epoch %d, want 2", w.number, step, w.pg.Epoch())
			case step != stalled || p != job.Backward || w.pg.Epoch() > 1:
			case w.number == 1:
				timedOut.Wait()
			default:
				err := w.pg.With(&comm.CallOptions{Timeout: 20 * time.Millisecond}).Barrier().Wait(t.Context())
				timedOut.Done()
				if !errors.Is(err, comm.ErrTimeout) || !strings.Contains(err.Error(), "rank 1 ") {
					t.Errorf("worker %d: got %v, want a timeout because of rank 1", w.number, err)
				}
			}
		}))
		if !slices.Equal(got, want) {
			t.Errorf("%+v: the states are %v, want %v", how, got, want)
		}
	}
}

func untilFailed(pg *comm.ProcessGroup) {
	for !pg.Failed() {
		time.Sleep(time.Millisecond)
	}
}

// If a rank does not come back, the others wait for it until the timeout, and Run returns an error.
func TestRunWithoutALateRank(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, w := range train(t, job.Options{}, 3, 20, time.Minute, nil, func(w *worker, step int, p job.Phase) {
			if step == 12 && p == job.Backward && w.number == 1 {
				untilFailed(w.pg)
				w.cancel()
			}
		}) {
			if w.number != 1 && (!errors.Is(w.err, comm.ErrTimeout) || !strings.Contains(w.err.Error(), "changing the members of the process group")) {
				t.Errorf("worker %d: got %v, want a timeout", w.number, w.err)
			}
		}
	})
}

// If no rank is left that has the state after the last committed step, all ranks get an error that says so. With
// Config.Restore they go on from a checkpoint.
func TestRunWithoutAState(t *testing.T) {
	const steps, lost = 20, 17 // the job saves a checkpoint at step 15
	for _, w := range train(t, job.Options{}, 3, steps, 0, nil, breaking(lost)) {
		var e *elastic.LostStateError
		if w.number != 1 && (!errors.As(w.err, &e) || e.Step != lost) {
			t.Errorf("worker %d: got %v, want that step %d is lost", w.number, w.err, lost)
		}
	}
	restored := make([]int, 3) // by worker: the step
	workers := train(t, job.Options{}, 3, steps, 0, restoring(restored), breaking(lost))
	if hashes := hashesOf(t, workers); len(hashes) != 2 || hashes[0] != hashes[1] || restored[0] != 15 || restored[2] != 15 {
		t.Errorf("the states are %v after the restored steps %v, want two equal ones after 15", hashes, restored)
	}
}

// restoring returns a function that loads the last checkpoint, and notes its step by worker.
func restoring(steps []int) func(ctx context.Context, w *worker) error {
	return func(ctx context.Context, w *worker) error {
		saver, err := checkpoint.Open(ctx, w.pg, w.folder, nil)
		if err != nil {
			return err
		}
		steps[w.number], err = saver.Resume(ctx, w.State())
		return errors.Join(err, saver.Close())
	}
}

// breaking returns a function that loses worker 1 of three at a step, when the states of the others are inconsistent.
func breaking(lost int) func(w *worker, step int, p job.Phase) {
	var broken sync.WaitGroup // until the states of workers 0 and 2 are inconsistent
	broken.Add(2)
	return func(w *worker, step int, p job.Phase) {
		switch {
		case step != lost || p != job.Optimizer || w.pg.Epoch() > 1:
		case w.number == 1:
			broken.Wait()
			w.die()
		default:
			w.Opt.BeginLoad() // as an update does that fails within
			broken.Done()
			untilFailed(w.pg)
		}
	}
}
