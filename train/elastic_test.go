package train_test

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/checkpoint"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/data"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/progress"
	"github.com/goddp/goddp/train"
)

// Ranks are lost within the evaluation after step 3, within step 5, and within the evaluation after step 8, which ends
// an epoch. Each evaluation and each checkpoint is made once nevertheless, and each evaluation counts once: those after the
// steps 3 and 8 are the best, and two others follow each.
func TestEvaluationsAndCheckpointsOfAGroupThatLosesRanks(t *testing.T) {
	o := &comm.Options{}
	backend.Survive(o)
	folder := t.TempDir()
	var after []int // the steps of the evaluations of worker 0
	var wg sync.WaitGroup
	for worker, pg := range must.New(comm.Local(4, o)) {
		wg.Go(func() {
			defer pg.Close()
			c, _ := smooth(pg, 2, whole)
			// dies loses a worker after a step, when the checkpoint of the step saved is complete.
			dies := func(victim, step, saved int) {
				if now, _ := c.Optimizer.Committed(); worker != victim || now != step {
					return
				}
				for saved > 0 && !slices.Contains(checkpoints(folder), saved) {
					runtime.Gosched()
				}
				backend.Kill(pg)
				runtime.Goexit()
			}
			c.Checkpoints, c.SaveEvery, c.EvaluateEvery, c.Keep = folder, 3, 3, 100
			c.Best, c.Patience = "score", 3
			c.Evaluate = func(ctx context.Context) ([]progress.Value, error) {
				dies(1, 3, 0)
				dies(3, 8, 6)
				err := pg.Barrier().Sync(ctx)
				step, _ := c.Optimizer.Committed()
				if err == nil && worker == 0 {
					after = append(after, step)
				}
				return []progress.Value{progress.V("score", map[int]float64{3: 2, 4: 4, 6: 3, 8: 1, 9: 5, 12: 6}[step])}, err
			}
			lossOf := c.Loss
			c.Loss = func(b *data.Batch) *autograd.Variable {
				if step, _ := c.Optimizer.Committed(); step == 4 && pg.Epoch() == 2 && b.EndsStep {
					pg.Barrier().Wait(t.Context()) // all ranks have evaluated
					dies(2, 4, 4)
				}
				return lossOf(b)
			}
			if err := train.Run(t.Context(), pg, c); err != nil {
				t.Errorf("worker %d: %v", worker, err)
			}
		})
	}
	wg.Wait()
	saved, want := checkpoints(folder), []int{3, 4, 6, 8, 9, 12}
	if !slices.Equal(after, want) || !slices.Equal(saved, want) {
		t.Errorf("evaluations after the steps %v, checkpoints of the steps %v, want %v", after, saved, want)
	}
	var best []int
	for _, info := range must.New(checkpoint.List(folder)) {
		if info.Manifest.Best {
			best = append(best, info.Step)
		}
	}
	if !slices.Equal(best, []int{8, 3}) {
		t.Errorf("the checkpoints of the steps %v were the best, want 8 and 3", best)
	}
}

// Worker 0 is lost before the first traced step. The others trace nevertheless, as the ranks that they are then.
func TestTraceOfAGroupThatLosesRanks(t *testing.T) {
	o := &comm.Options{}
	backend.Survive(o)
	folder := t.TempDir()
	var wg sync.WaitGroup
	for worker, pg := range must.New(comm.Local(3, o)) {
		wg.Go(func() {
			defer pg.Close()
			c, _ := smooth(pg, 2, whole)
			c.Epochs, c.Trace = 4, filepath.Join(folder, "trace.json")
			lossOf := c.Loss
			c.Loss = func(b *data.Batch) *autograd.Variable {
				if step, _ := c.Optimizer.Committed(); step == 3 && worker == 0 {
					backend.Kill(pg)
					runtime.Goexit()
				}
				return lossOf(b)
			}
			if err := train.Run(t.Context(), pg, c); err != nil {
				t.Errorf("worker %d: %v", worker, err)
			}
		})
	}
	wg.Wait()
	for _, name := range []string{"trace.json", "trace.rank1.json"} {
		trace, err := os.ReadFile(filepath.Join(folder, name))
		if n := strings.Count(string(trace), `"name":"optimizer","cat":"compute"`); n != 5 {
			t.Errorf("%s has %d updates (%v), want 5", name, n, err)
		}
	}
	if files := must.New(os.ReadDir(folder)); len(files) != 2 {
		t.Errorf("there are %v, want the traces of two ranks", files)
	}
}

// checkpoints returns the steps of the checkpoints in a folder, in the order in which they were saved.
func checkpoints(folder string) (steps []int) {
	for _, info := range must.New(checkpoint.List(folder)) {
		steps = append(steps, info.Step)
	}
	slices.Reverse(steps)
	return steps
}
