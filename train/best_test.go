package train_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goddp/goddp/checkpoint"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/progress"
	"github.com/goddp/goddp/train"
)

// The best checkpoint stays beside the last one, and the run ends after 4 evaluations without a better value. A run that
// resumes within these ends at the same step with the same parameters. Started again it makes no step, unless it has
// more patience. Each time it logs why it ends. All ranks use rank 0's values.
func TestBestAndPatience(t *testing.T) {
	scores := map[int]float64{2: 5, 4: 3, 6: 4, 8: 3.5, 10: 3.2, 12: 3.1, 14: 2.5, 16: 2.6, 18: 2.7}
	given := errors.New("given up")
	for _, sharded := range []bool{false, true} {
		dir, whole := t.TempDir(), t.TempDir()
		var log bytes.Buffer
		commtest.OnRanks(t, 2, &comm.Options{Log: slog.New(slog.NewTextHandler(&log, nil))}, func(pg *comm.ProcessGroup) error {
			run := func(dir string, patience, failing int) (params []float64, batches int, best []int, err error) {
				params, err = trained(t.Context(), pg, sharded, 5, func(c *train.Config) {
					c.Checkpoints, c.SaveEvery, c.Keep, c.EvaluateEvery = dir, 3, 1, 2
					c.Best, c.Patience = "score", patience
					c.Evaluate = func(context.Context) ([]progress.Value, error) {
						step, _ := c.Optimizer.Committed()
						if step == failing {
							return nil, given
						}
						return []progress.Value{progress.V("other", 0), progress.V("score", scores[step]*float64(1-2*pg.Rank()))}, nil
					}
					c.OnEvaluation = func(_ context.Context, s *train.Status) error {
						if s.IsBest {
							best = append(best, s.Step)
						}
						return nil
					}
					counted(c, &batches)
				})
				return params, batches, best, err
			}
			want, batches, best, err := run(whole, 4, 0)
			if err != nil || batches != 12 || !slices.Equal(best, []int{2, 4}) {
				return fmt.Errorf("%d batches, the best models after %v: %w", batches, best, err)
			}
			if _, _, _, err := run(dir, 4, 8); !errors.Is(err, given) {
				return fmt.Errorf("%v, want what Evaluate returned", err)
			}
			for _, c := range []struct {
				patience, batches int
				best, left        []int
			}{
				{4, 6, nil, []int{4, 12}},
				{4, 0, nil, []int{4, 12}},
				{5, 6, []int{14}, []int{14, 18}},
			} {
				got, batches, best, err := run(dir, c.patience, 0)
				if left := checkpoints(dir); err != nil || batches != c.batches || !slices.Equal(best, c.best) || pg.Rank() == 0 && !slices.Equal(left, c.left) {
					return fmt.Errorf("%+v: %d batches, the best models after %v, checkpoints %v: %w", c, batches, best, left, err)
				}
				if c.patience == 4 && !slices.Equal(got, want) {
					return fmt.Errorf("%+v: the parameters are %v, want %v", c, got, want)
				}
			}
			if path, err := checkpoint.Best(dir); err != nil || filepath.Base(path) != "step-00000014" {
				return fmt.Errorf("the best checkpoint is %s, %w", path, err)
			}
			return nil
		})
		if n := strings.Count(log.String(), "ends early"); n != 3 { // of the whole run, the resumed one, and the one that had ended
			t.Errorf("%d lines say that a run ends early, want 3, in\n%s", n, &log)
		}
	}
}

// Without the value there is an error on all ranks.
func TestBestThatEvaluateLacks(t *testing.T) {
	commtest.OnRanks(t, 2, nil, func(pg *comm.ProcessGroup) error {
		_, err := trained(t.Context(), pg, false, 5, func(c *train.Config) {
			c.Best = "score"
			c.Evaluate = func(context.Context) ([]progress.Value, error) {
				return []progress.Value{progress.V("loss", 1)}, nil
			}
		})
		if want := `rank 0: train: Best is "score", but Evaluate returned [{loss 1}]`; err == nil || !strings.HasPrefix(err.Error(), want) {
			return fmt.Errorf("%v, want %s", err, want)
		}
		return nil
	})
}

// A callback of one rank ends the run on all ranks after the next step, and its error is that of all. The run saves,
// and writes the weights unless there is an error.
func TestCallbacksThatEndTheRun(t *testing.T) {
	given := errors.New("given up")
	for name, set := range map[string]func(c *train.Config, f func(context.Context, *train.Status) error){
		"OnStep":       func(c *train.Config, f func(context.Context, *train.Status) error) { c.OnStep = f },
		"OnEvaluation": func(c *train.Config, f func(context.Context, *train.Status) error) { c.OnEvaluation = f },
		"OnCheckpoint": func(c *train.Config, f func(context.Context, *train.Status) error) { c.OnCheckpoint = f },
	} {
		for _, end := range []error{train.ErrStop, given} {
			for _, last := range []bool{false, true} { // whether the callback ends the run after its last step
				t.Run(fmt.Sprintf("%s, %v, %v", name, end, last), func(t *testing.T) {
					dir := t.TempDir()
					commtest.OnRanks(t, 2, nil, func(pg *comm.ProcessGroup) error {
						batches, at := 0, 0
						_, err := trained(t.Context(), pg, false, 5, func(c *train.Config) {
							c.Checkpoints, c.SaveEvery, c.EvaluateEvery, c.Weights = filepath.Join(dir, "run"), 4, 4, filepath.Join(dir, "weights")
							c.MaxSteps = 10
							c.Evaluate = func(context.Context) ([]progress.Value, error) { return nil, nil }
							first := 4
							if last {
								first = 10
							}
							set(c, func(_ context.Context, s *train.Status) error {
								if pg.Rank() == 1 && s.Step >= first && at == 0 {
									at = s.Step
									return fmt.Errorf("so: %w", end)
								}
								return nil
							})
							counted(c, &batches)
						})
						steps, err2 := comm.AllGatherInts(t.Context(), pg, []int64{int64(at)})
						if err2 != nil {
							return err2
						}
						if want := min(int(steps[1][0])+1, 10); batches != want || want == 1 {
							return fmt.Errorf("%d steps after a callback after %d, want %d", batches, steps[1][0], want)
						}
						if end == train.ErrStop && err != nil || end == given && (err == nil || err.Error() != "rank 1: so: given up") {
							return fmt.Errorf("got %w, want that rank 1 has given up if it has", err)
						}
						if err := pg.Barrier().Sync(t.Context()); err != nil {
							return err
						}
						if saved := checkpoints(filepath.Join(dir, "run")); saved[len(saved)-1] != batches {
							return fmt.Errorf("checkpoints %v after %d steps", saved, batches)
						}
						if written, _ := filepath.Glob(filepath.Join(dir, "weights")); (len(written) > 0) != (end == train.ErrStop) {
							return fmt.Errorf("weights: %v", written)
						}
						return nil
					})
				})
			}
		}
	}
}

// OnStep is told each step, its loss and what is logged after it; OnCheckpoint each checkpoint, when it is complete.
func TestCallbacks(t *testing.T) {
	dir := t.TempDir()
	commtest.OnRanks(t, 2, nil, func(pg *comm.ProcessGroup) error {
		var steps []string
		var saved []int
		_, err := trained(t.Context(), pg, false, 5, func(c *train.Config) {
			c.Checkpoints, c.SaveEvery, c.Keep, c.LogEvery, c.MaxSteps = dir, 1, 100, 4, 8
			c.OnStep = func(ctx context.Context, s *train.Status) error {
				loss, err := s.Loss.TryItem(ctx)
				if !(loss > 0) || s.Steps != 8 || len(s.Values) > 0 && s.Values[0].Name != "loss" {
					return fmt.Errorf("the loss is %v (%v), the status %+v", loss, err, s)
				}
				steps = append(steps, fmt.Sprintf("%d/%d:%d", s.Epoch, s.Step, len(s.Values)))
				return nil
			}
			c.OnCheckpoint = func(_ context.Context, s *train.Status) error {
				saved = append(saved, s.Checkpoint.Step)
				return checkpoint.Verify(s.Checkpoint.Path)
			}
		})
		if want := "[0/1:3 0/2:0 0/3:0 0/4:3 0/5:0 0/6:0 1/7:0 1/8:3]"; err == nil && fmt.Sprint(steps) != want {
			err = fmt.Errorf("the steps %v, want %s", steps, want)
		}
		if want := []int{1, 2, 3, 4, 5, 6, 7, 8}; err == nil && !slices.Equal(saved, want) {
			err = fmt.Errorf("the checkpoints %v, want %v", saved, want)
		}
		return err
	})
}
