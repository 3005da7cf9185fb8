package elastic_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/elastic"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/test/survive/job"
)

func TestMain(m *testing.M) { testkit.Main(m, nil) }

// train makes steps on ranks that survive failures, and returns the hashes of their states, "" for one that has died.
// atPhase is called when a phase of a step begins.
func train(t *testing.T, ranks, steps int, atPhase func(pg *comm.ProcessGroup, worker, step int, p job.Phase, die func())) []string {
	o := &comm.Options{Log: slog.New(slog.DiscardHandler)}
	backend.Survive(o)
	groups, err := comm.Local(ranks, o)
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	hashes := make([]string, ranks)
	var wg sync.WaitGroup
	for w, pg := range groups {
		wg.Go(func() {
			defer pg.Close()
			j, err := job.New(pg, job.Options{})
			if err != nil {
				t.Error(err)
				return
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			j.Phase = func(p job.Phase) {
				step, _ := j.Opt.Committed()
				atPhase(pg, w, step, p, func() { backend.Kill(pg); cancel() })
			}
			err = elastic.Run(ctx, pg, &elastic.Config{State: j.State(), Data: j.Loader}, func(ctx context.Context) error {
				return j.Loop(ctx, folder, steps)
			})
			if ctx.Err() != nil {
				return // it is dead
			}
			if hashes[w], _ = j.Hash(); err != nil {
				t.Errorf("worker %d: %v", w, err)
			}
		})
	}
	wg.Wait()
	return hashes
}

// Ranks are lost at different points of a step. The others make the same steps from then on, with the same states.
func TestRun(t *testing.T) {
	deaths := map[int]map[job.Phase]int{10: {job.Forward: 3}, 11: {job.Backward: 0}, 20: {job.Optimizer: 1}}
	hashes := train(t, 4, 40, func(_ *comm.ProcessGroup, worker, step int, p job.Phase, die func()) {
		if victim, dies := deaths[step][p]; dies && victim == worker {
			die()
		}
	})
	hashes = slices.DeleteFunc(hashes, func(h string) bool { return h == "" })
	slices.Sort(hashes)
	if len(hashes) == 0 || len(slices.Compact(hashes)) != 1 {
		t.Errorf("the states are %v", hashes)
	}
}

// A rank stalls until a call of the others has timed out. All go on together, and come to the bits to which they come
// undisturbed.
func TestRunAfterATimeout(t *testing.T) {
	const ranks, steps, stalled = 3, 20, 12
	want := train(t, ranks, steps, func(*comm.ProcessGroup, int, int, job.Phase, func()) {})
	got := train(t, ranks, steps, func(pg *comm.ProcessGroup, worker, step int, p job.Phase, _ func()) {
		switch {
		case step == steps-1 && pg.Epoch() != 2:
			t.Errorf("worker %d: step %d in epoch %d, want 2", worker, step, pg.Epoch())
		case step != stalled || p != job.Backward || pg.Epoch() > 1:
		case worker == 1:
			for !pg.Failed() {
				time.Sleep(time.Millisecond)
			}
		default:
			err := pg.With(&comm.CallOptions{Timeout: 20 * time.Millisecond}).Barrier().Wait(t.Context())
			if !errors.Is(err, comm.ErrTimeout) || !strings.Contains(err.Error(), "rank 1 ") {
				t.Errorf("worker %d: got %v, want a timeout because of rank 1", worker, err)
			}
		}
	})
	if !slices.Equal(got, want) {
		t.Errorf("the states are %v, want %v", got, want)
	}
}
