package train_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/checkpoint"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/data"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/ddp/zero"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
	"github.com/goddp/goddp/optim/schedule"
	"github.com/goddp/goddp/profile"
	"github.com/goddp/goddp/progress"
	"github.com/goddp/goddp/train"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// points returns samples of a linear function.
func points(n int) data.Dataset {
	fields := []data.Field{{DType: device.Float32, Shape: device.Shape{3}}, {DType: device.Float32, Shape: device.Shape{1}}}
	return data.Each(n, fields, func(i int, dst []device.Tensor) error {
		var y float32
		for j, x := range device.Elements[float32](dst[0]) {
			x = float32(math.Sin(float64(3*i + j)))
			device.Elements[float32](dst[0])[j] = x
			y += float32(j+1) * x
		}
		device.Elements[float32](dst[1])[0] = y
		return nil
	})
}

// trained trains on 60 samples with a configuration that edit has changed, and returns the
// parameters.
func trained(ctx context.Context, pg *comm.ProcessGroup, sharded bool, batch int, edit func(*train.Config)) ([]float64, error) {
	net := network()
	autograd.Generator(pg.Device()).Seed(1)
	var model interface {
		train.Model
		nn.Module
	}
	c := train.Config{Epochs: 3, LR: schedule.Linear(0.1, 0.02, 18), ClipNorm: 1}
	if sharded {
		m, opt, err := zero.New(net, pg, func(params []*nn.Parameter) (*optim.SGD, error) {
			return optim.NewSGD(params, &optim.SGDOptions{LR: 1, Momentum: 0.9})
		}, nil)
		if err != nil {
			return nil, err
		}
		model, c.Optimizer = m, opt
	} else {
		m, err := ddp.New(net, pg, nil)
		if err != nil {
			return nil, err
		}
		model, c.Optimizer = m, must.New(optim.NewSGD(m.Parameters(), &optim.SGDOptions{LR: 1, Momentum: 0.9}))
	}
	loader, err := data.NewLoader(points(60), pg, &data.LoaderOptions{Batch: batch, Shuffle: true, LastBatch: data.Drop})
	if err != nil {
		return nil, err
	}
	c.Model, c.Data = model, loader
	c.Loss = func(b *data.Batch) *autograd.Variable { return nn.MSELoss(model.Forward(b.Vars[0]), b.Vars[1], nil) }
	edit(&c)
	if err := train.Run(ctx, pg, &c); err != nil {
		return nil, err
	}
	return values(ctx, net)
}

// counted counts the batches of which c computes the loss.
func counted(c *train.Config, batches *int) {
	loss := c.Loss
	c.Loss = func(b *data.Batch) *autograd.Variable {
		*batches++
		return loss(b)
	}
}

func network() *nn.Sequence {
	return nn.Sequential(nn.Linear(3, 8, nil), nn.GELU(), nn.Dropout(0.1), nn.Linear(8, 1, nil))
}

// values returns the elements of all parameters.
func values(ctx context.Context, m nn.Model) (all []float64, err error) {
	for _, p := range m.Parameters() {
		v, err := p.Var().Read(ctx)
		if err != nil {
			return nil, err
		}
		all = append(all, v...)
	}
	return all, nil
}

// With Accumulate 2, two batches of 5 give the same step as one batch of 10, with replicas and with shards of the
// optimizer's state. With Accumulate 4, the last step of an epoch of 6 batches is that of the two that are left.
func TestAccumulate(t *testing.T) {
	for _, c := range []struct {
		sharded             bool
		accumulate, anEpoch int // steps
	}{{false, 2, 3}, {true, 2, 3}, {false, 4, 2}, {true, 4, 2}} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			commtest.OnRanks(t, 2, nil, func(pg *comm.ProcessGroup) error {
				run := func(batch, accumulate int) (params []float64, err error) {
					return trained(t.Context(), pg, c.sharded, batch, func(config *train.Config) {
						config.Accumulate = accumulate
						config.Data = must.New(data.NewLoader(points(60), pg, &data.LoaderOptions{Batch: batch, Shuffle: true}))
						if got, want := config.Steps(), 3*c.anEpoch; got != want {
							t.Errorf("%d steps, want %d", got, want)
						}
					})
				}
				whole, err := run(5*c.accumulate, 1)
				if err != nil {
					return err
				}
				parts, err := run(5, c.accumulate)
				if err != nil {
					return err
				}
				for i := range whole {
					// The ranks share a global batch of 10 in another way in both runs, so sums are
					// added in another order.
					if d := math.Abs(whole[i] - parts[i]); !(d < 1e-4) {
						return fmt.Errorf("parameter %d is %v with one batch to a step and %v with two", i, whole[i], parts[i])
					}
				}
				return nil
			})
		})
	}
}

// Averages around the optimizer change nothing about the learning rate and the clipping, also if the ranks hold parts
// of the gradients.
func TestAverages(t *testing.T) {
	for _, sharded := range []bool{false, true} {
		commtest.OnRanks(t, 2, nil, func(pg *comm.ProcessGroup) error {
			var runs [2][]float64
			for i := range runs {
				var err error
				runs[i], err = trained(t.Context(), pg, sharded, 5, func(c *train.Config) {
					c.ClipNorm = 0.01
					if i == 1 {
						c.Optimizer = must.New(optim.NewEMA(c.Model, c.Optimizer, nil))
					}
				})
				if err != nil {
					return err
				}
			}
			if !slices.Equal(runs[0], runs[1]) {
				return fmt.Errorf("sharded %v: the parameters are %v with averages, %v without", sharded, runs[1], runs[0])
			}
			return nil
		})
	}
}

// A run that ends in its first epoch continues from its checkpoint, and ends with the same bits as an uninterrupted run,
// also if the ranks have different numbers of samples and so draw different numbers of random numbers.
func TestResume(t *testing.T) {
	for _, c := range []struct{ global, steps, save int }{{0, 6, 4}, {15, 4, 3}} {
		dir := t.TempDir()
		given := errors.New("given up")
		commtest.OnRanks(t, 2, nil, func(pg *comm.ProcessGroup) error {
			batches := 0
			run := func(evaluate error, folder string) ([]float64, error) {
				return trained(t.Context(), pg, false, 5, func(config *train.Config) {
					if c.global > 0 {
						config.Data = must.New(data.NewLoader(points(60), pg, &data.LoaderOptions{GlobalBatch: c.global, Shuffle: true}))
					}
					config.Checkpoints, config.SaveEvery = folder, c.save
					config.Evaluate = func(context.Context) ([]progress.Value, error) { return nil, evaluate }
					counted(config, &batches)
				})
			}
			want, err := run(nil, "")
			if err != nil {
				return err
			}
			batches = 0
			if _, err := run(given, dir); !errors.Is(err, given) {
				return fmt.Errorf("%v, want what Evaluate returned", err)
			}
			got, err := run(nil, dir)
			if err != nil {
				return err
			}
			if want := c.steps + 3*c.steps - c.save; batches != want {
				return fmt.Errorf("%d batches were trained on, want %d", batches, want)
			}
			if !slices.Equal(got, want) {
				return fmt.Errorf("%+v: the parameters are %v after a resumed run, %v after one without a break", c, got, want)
			}
			return nil
		})
	}
}

// A run of 4 epochs that resumes after 2 with another number of ranks, or within the third, uses each sample 4 times.
func TestResumeWithAnotherNumberOfRanks(t *testing.T) {
	given := errors.New("given up")
	for _, c := range []struct{ before, after, steps, more int }{
		{before: 2, after: 1, steps: 12, more: 24}, // an epoch has 60 samples in batches of 5
		{before: 2, after: 1, steps: 15, more: 18},
		{before: 1, after: 2, steps: 27, more: 10}, // the last 5 of the 45 samples that are left of the epoch are dropped
	} {
		dir := t.TempDir()
		commtest.OnRanks(t, c.before, nil, func(pg *comm.ProcessGroup) error {
			_, err := trained(t.Context(), pg, false, 5, func(config *train.Config) {
				config.Epochs, config.Checkpoints, config.SaveEvery, config.EvaluateEvery = 4, dir, c.steps, c.steps+1
				evaluations := 0
				config.Evaluate = func(context.Context) ([]progress.Value, error) {
					if evaluations++; evaluations == 3 { // after 2 epochs, and after step c.steps+1 or the third epoch
						return nil, given
					}
					return nil, nil
				}
			})
			if !errors.Is(err, given) {
				return fmt.Errorf("%v, want what Evaluate returned", err)
			}
			return nil
		})
		commtest.OnRanks(t, c.after, nil, func(pg *comm.ProcessGroup) error {
			batches := 0
			_, err := trained(t.Context(), pg, false, 5, func(config *train.Config) {
				config.Epochs, config.Checkpoints = 4, dir
				counted(config, &batches)
			})
			if err == nil && batches != c.more {
				err = fmt.Errorf("%+v: a rank trained on %d batches more, want %d", c, batches, c.more)
			}
			return err
		})
	}
}

// A run whose last step is within an epoch evaluates and saves after it. It evaluates again when it
// is started again. A run with more steps continues behind the last batch.
func TestMaxSteps(t *testing.T) {
	dir := t.TempDir()
	commtest.OnRanks(t, 2, nil, func(pg *comm.ProcessGroup) error {
		want, err := trained(t.Context(), pg, false, 5, func(*train.Config) {})
		if err != nil {
			return err
		}
		var got []float64
		for _, run := range []struct{ epochs, steps, batches, evaluations int }{
			{0, 8, 8, 2}, // an epoch has 6 steps
			{5, 8, 0, 1},
			{0, 13, 5, 2},
			{3, 100, 5, 1},
			{3, 0, 0, 0},
		} {
			batches, evaluations := 0, 0
			got, err = trained(t.Context(), pg, false, 5, func(c *train.Config) {
				c.Epochs, c.MaxSteps, c.Checkpoints = run.epochs, run.steps, dir
				c.Evaluate = func(context.Context) ([]progress.Value, error) {
					evaluations++
					return nil, nil
				}
				counted(c, &batches)
			})
			if err != nil {
				return err
			}
			if batches != run.batches || evaluations != run.evaluations {
				return fmt.Errorf("%+v: %d batches and %d evaluations", run, batches, evaluations)
			}
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("the parameters are %v in five parts, %v in one", got, want)
		}
		return nil
	})
}

// Rank 0 logs the mean loss of the ranks and the learning rate of the first step and of each sixth, and the
// results of the evaluation after each epoch.
func TestLog(t *testing.T) {
	file := filepath.Join(t.TempDir(), "run.jsonl")
	commtest.OnRanks(t, 2, nil, func(pg *comm.ProcessGroup) error {
		_, err := trained(t.Context(), pg, false, 5, func(c *train.Config) {
			c.Log, c.LogEvery = file, 6
			c.Evaluate = func(context.Context) ([]progress.Value, error) {
				return []progress.Value{progress.V("answer", 42)}, nil
			}
		})
		return err
	})
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for what, want := range map[string]int{`"loss":`: 4, `"lr":`: 4, `"step":1,`: 1, `"answer":42`: 3, `"epoch":3,`: 1} {
		if n := strings.Count(string(text), what); n != want {
			t.Errorf("%s is there %d times, want %d, in\n%s", what, n, want, text)
		}
	}
}

func TestConfigThatMakesNoSense(t *testing.T) {
	commtest.OnRanks(t, 1, nil, func(pg *comm.ProcessGroup) error {
		for _, wrong := range []struct {
			edit func(*train.Config)
			want string
		}{
			{func(c *train.Config) { c.Accumulate = -1 }, "Accumulate -1"},
			{func(c *train.Config) {
				c.Accumulate, c.Data = 2, must.New(data.NewLoader(points(60), pg, &data.LoaderOptions{GlobalBatch: 8}))
			}, "Accumulate is 2, but GlobalBatch of Data is 8"},
			{func(c *train.Config) { c.Epochs = 0 }, "Epochs or MaxSteps of at least 1"},
			{func(c *train.Config) { c.ClipNorm = math.NaN() }, "ClipNorm NaN"},
			{func(c *train.Config) { c.LR = schedule.Constant(math.NaN()) }, "LR is NaN, want 0 or more"},
			{func(c *train.Config) { c.Loss = nil }, "Loss: false"},
			{func(c *train.Config) { c.Values = map[string]any{"position": new(int)} }, `Values has the key "position"`},
			{func(c *train.Config) {
				c.Data = must.New(data.NewLoader(points(60), pg, &data.LoaderOptions{Batch: 5, LastBatch: data.Uneven}))
			}, "LastBatch of Data is Uneven"},
			{func(c *train.Config) {
				net := c.Model.(*ddp.Model).Unwrap().(nn.Module)
				c.Loss = func(b *data.Batch) *autograd.Variable { return nn.MSELoss(net.Forward(b.Vars[0]), b.Vars[1], nil) }
			}, "Loss did not go through Model"},
		} {
			if _, err := trained(t.Context(), pg, false, 5, wrong.edit); err == nil || !strings.Contains(err.Error(), wrong.want) {
				return fmt.Errorf("%v, want an error with %q", err, wrong.want)
			}
		}
		return nil
	})
}

// A run that resumes with other data returns an error with both, or with AllowOtherData starts the epoch again.
func TestResumeWithOtherData(t *testing.T) {
	dir := t.TempDir()
	commtest.OnRanks(t, 2, nil, func(pg *comm.ProcessGroup) error {
		run := func(seed uint64, edit func(c *train.Config)) (batches int, err error) {
			_, err = trained(t.Context(), pg, false, 5, func(c *train.Config) {
				c.Data = must.New(data.NewLoader(points(60), pg, &data.LoaderOptions{Batch: 5, Shuffle: true, Seed: seed}))
				c.Checkpoints = dir
				counted(c, &batches)
				edit(c)
			})
			return batches, err
		}
		if _, err := run(1, func(c *train.Config) { c.MaxSteps = 8 }); err != nil { // 2 steps of the second epoch
			return err
		}
		batches, err := run(2, func(*train.Config) {})
		if err == nil || !strings.Contains(err.Error(), "60 samples shuffled by seed 1, but the loader has 60 samples shuffled by seed 2") || batches > 0 {
			return fmt.Errorf("%v after %d batches, want an error with both seeds", err, batches)
		}
		batches, err = run(2, func(c *train.Config) { c.AllowOtherData = true })
		if err != nil || batches != 12 {
			return fmt.Errorf("%d batches (%w), want those of two epochs, 12", batches, err)
		}
		return nil
	})
}

// After the first loss that is not finite, which rank 1 has in step 9 of 18, the last finite checkpoint is kept. The loss
// is logged once, or with RequireFinite an error on all ranks at the next checkpoint.
func TestLossThatIsNotFinite(t *testing.T) {
	for _, require := range []bool{false, true} {
		dir := t.TempDir()
		var log bytes.Buffer
		commtest.OnGoroutines(t, 2, &comm.Options{Log: slog.New(slog.NewTextHandler(&log, nil))}, func(pg *comm.ProcessGroup) error {
			_, err := trained(t.Context(), pg, false, 5, func(c *train.Config) {
				c.Checkpoints, c.SaveEvery, c.Keep, c.RequireFinite = dir, 2, 2, require
				batches, loss := 0, c.Loss
				c.Loss = func(b *data.Batch) *autograd.Variable {
					if batches++; batches == 9 && pg.Rank() == 1 {
						return autograd.MulScalar(loss(b), math.NaN())
					}
					return loss(b)
				}
			})
			if require != (err != nil && strings.Contains(err.Error(), "the loss of step 10 is NaN, want a finite one (RequireFinite)")) {
				return fmt.Errorf("RequireFinite %v: %w", require, err)
			}
			return nil
		})
		all, err := checkpoint.List(dir)
		var steps []int
		for _, info := range all {
			steps = append(steps, info.Step)
		}
		want := []int{18, 16, 8}
		if require {
			want = []int{8, 6}
		}
		if err != nil || !slices.Equal(steps, want) {
			t.Errorf("RequireFinite %v: checkpoints of steps %d (%v), want %d", require, steps, err, want)
		}
		if n := strings.Count(log.String(), "train: the loss is not finite"); (n == 1) == require || n > 1 {
			t.Errorf("RequireFinite %v: %d warnings in\n%s", require, n, &log)
		}
	}
}

// Run takes over no gradients from before, and neither changes the loader's position nor leaves its own learning rate,
// also when it fails.
func TestRunLeavesStateAsItWas(t *testing.T) {
	given := errors.New("given up")
	commtest.OnRanks(t, 2, nil, func(pg *comm.ProcessGroup) error {
		for _, sharded := range []bool{false, true} {
			want, err := trained(t.Context(), pg, sharded, 5, func(*train.Config) {})
			if err != nil {
				return err
			}
			for _, end := range []error{nil, given} {
				var loader *data.Loader
				var rate *float64
				got, err := trained(t.Context(), pg, sharded, 5, func(c *train.Config) {
					loader = c.Data
					switch o := c.Optimizer.(type) {
					case *optim.SGD:
						rate = &o.Groups()[0].LR
					case *zero.Optimizer[*optim.SGD]:
						rate = &o.Local().Groups()[0].LR
					}
					for b, err := range loader.Epoch(t.Context(), 0) {
						if err == nil {
							err = c.Loss(b).Backward(nil)
						}
						if err == nil {
							err = loader.Resume(b.After)
						}
						if err != nil {
							t.Error(err)
						}
						break
					}
					autograd.Generator(pg.Device()).Seed(1)
					c.Evaluate = func(context.Context) ([]progress.Value, error) { return nil, end }
				})
				if !errors.Is(err, end) || end == nil && !slices.Equal(got, want) {
					return fmt.Errorf("the parameters are %v (%w) after gradients from before, want %v", got, err, want)
				}
				left := 0
				for range loader.Epoch(t.Context(), 0) {
					left++
				}
				if *rate != 1 || left != 5 {
					return fmt.Errorf("after a run that ended with %v the learning rate is %v, want 1, and %d batches are left, want 5", end, *rate, left)
				}
			}
		}
		return nil
	})
}

// If the loaders differ, all ranks return an error with both values.
func TestLoadersThatDiffer(t *testing.T) {
	commtest.OnRanks(t, 2, nil, func(pg *comm.ProcessGroup) error {
		_, err := trained(t.Context(), pg, false, 5, func(c *train.Config) {
			loader, err := data.NewLoader(points(60), pg, &data.LoaderOptions{Batch: 4, Shuffle: true, Seed: uint64(7 + pg.Rank())})
			if err != nil {
				t.Error(err)
			}
			c.Data = loader
		})
		if err == nil || !strings.Contains(err.Error(), "rank 1") || !strings.Contains(err.Error(), "Seed:7") || !strings.Contains(err.Error(), "Seed:8") {
			return fmt.Errorf("%v, want an error with both seeds", err)
		}
		return nil
	})
}

// If the settings differ that decide what a rank calls, all ranks return an error with both values before the first step.
func TestSettingsThatDiffer(t *testing.T) {
	weights := filepath.Join(t.TempDir(), "weights")
	commtest.OnRanks(t, 2, nil, func(pg *comm.ProcessGroup) error {
		_, err := trained(t.Context(), pg, false, 5, func(c *train.Config) { c.Epochs = 2 + pg.Rank() })
		if err == nil || !strings.Contains(err.Error(), "Epochs:3") || !strings.Contains(err.Error(), "on rank 1 and {Epochs:2") {
			return fmt.Errorf("%v, want an error with both numbers of epochs", err)
		}
		_, err = trained(t.Context(), pg, false, 5, func(c *train.Config) {
			c.Evaluate = func(context.Context) ([]progress.Value, error) { return []progress.Value{progress.V("loss", 1)}, nil }
			c.Best = []string{"", "loss"}[pg.Rank()]
		})
		if err == nil || !strings.Contains(err.Error(), "Best:loss") {
			return fmt.Errorf("%v, want an error with Best of rank 1", err)
		}
		_, err = trained(t.Context(), pg, false, 5, func(c *train.Config) {
			if pg.Rank() == 0 {
				c.Weights = weights
			}
		})
		if err == nil || !strings.Contains(err.Error(), "Weights:true") {
			return fmt.Errorf("%v, want an error about Weights", err)
		}
		return nil
	})
}

// A disk without space for the log's lines does not cost the run its model.
func TestLogThatCannotBeWritten(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("needs /dev/full: ", err)
	}
	weights := filepath.Join(t.TempDir(), "weights")
	commtest.OnRanks(t, 2, nil, func(pg *comm.ProcessGroup) error {
		_, err := trained(t.Context(), pg, false, 5, func(c *train.Config) { c.Log, c.Weights = "/dev/full", weights })
		return err
	})
	if _, err := os.Stat(weights); err != nil {
		t.Error(err)
	}
}

// stopping is a model whose ranks stop after the first step.
type stopping struct{ train.Model }

func (stopping) Stopping() bool { return true }

// Run writes the weights when all steps are made. It also does so if it resumes from a checkpoint of the last step,
// but not if the ranks stop on request. The file may be in the folder of the checkpoints, which Run makes.
func TestWeights(t *testing.T) {
	dir := t.TempDir()
	file := func(run string) string { return filepath.Join(dir, run, "weights") }
	commtest.OnRanks(t, 1, nil, func(pg *comm.ProcessGroup) error {
		run := func(name string, stop bool) ([]float64, error) {
			return trained(t.Context(), pg, false, 5, func(c *train.Config) {
				c.Weights, c.Checkpoints = file(name), filepath.Join(dir, name)
				if stop {
					c.Model = stopping{c.Model}
				}
			})
		}
		if _, err := run("stopped", true); err != nil {
			return err
		}
		if _, err := os.Stat(file("stopped")); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%v, want no file of weights of a run that was stopped", err)
		}
		for range 2 {
			params, err := run("whole", false)
			if err != nil {
				return err
			}
			net := network()
			if err := nn.Place(net, pg.Device(), 5); err != nil {
				return err
			}
			report, err := checkpoint.LoadWeights(file("whole"), net)
			if err == nil {
				err = errors.Join(report.Complete(), os.Remove(file("whole")))
			}
			if err != nil {
				return err
			}
			if got, err := values(t.Context(), net); err != nil || !slices.Equal(got, params) {
				return fmt.Errorf("the file has %v (%v), want %v", got, err, params)
			}
		}
		return nil
	})
}

// A file that cannot be made is an error on all ranks before the first step.
func TestFilesThatCannotBeMade(t *testing.T) {
	dir := t.TempDir()
	missing := filepath.Join(dir, "no", "file")
	for want, edit := range map[string]func(c *train.Config){
		"rank 0: train: Weights: " + dir + " is a folder":                                 func(c *train.Config) { c.Weights = dir },
		"rank 0: train: Weights: cannot create a file in the folder of " + missing + ": ": func(c *train.Config) { c.Weights = missing },
		"rank 0: train: Trace: cannot create a file in the folder of " + missing + ": ":   func(c *train.Config) { c.Trace = missing },
		"rank 0: progress: open " + missing + ": ":                                        func(c *train.Config) { c.Log = missing },
	} {
		commtest.OnRanks(t, 2, nil, func(pg *comm.ProcessGroup) error {
			steps := 0
			_, err := trained(t.Context(), pg, false, 5, func(c *train.Config) {
				c.LR = func(int) float64 { steps++; return 0.1 }
				edit(c)
			})
			if err == nil || !strings.HasPrefix(err.Error(), want) || steps > 0 {
				return fmt.Errorf("got %v after %d steps, want %q before the first", err, steps, want)
			}
			return nil
		})
	}
}

// Evaluations follow each fourth step and each epoch, of 6 steps, and the end.
func TestEvaluateEvery(t *testing.T) {
	commtest.OnRanks(t, 2, nil, func(pg *comm.ProcessGroup) error {
		batches := 0
		var after []int
		_, err := trained(t.Context(), pg, false, 5, func(c *train.Config) {
			c.MaxSteps, c.EvaluateEvery = 14, 4
			c.Evaluate = func(context.Context) ([]progress.Value, error) {
				after = append(after, batches)
				return nil, nil
			}
			counted(c, &batches)
		})
		if want := []int{4, 6, 8, 12, 14}; err == nil && !slices.Equal(after, want) {
			err = fmt.Errorf("evaluations after the steps %v, want %v", after, want)
		}
		return err
	})
}

// The trace has five steps, from the eleventh on, or those of them that the run makes. A run that ends before
// them says that there is no trace.
func TestTrace(t *testing.T) {
	given := errors.New("given up")
	for _, e := range []struct {
		name    string
		edit    func(c *train.Config)
		err     error
		updates int  // 0: there is no trace
		isOn    bool // whether the program records too
	}{
		{"whole", func(*train.Config) {}, nil, 5, false},
		{"whole, while the program records", func(*train.Config) {}, nil, 15, true},
		{"ends with the trace", func(c *train.Config) { c.MaxSteps = 15 }, nil, 5, false},
		{"ends in the trace", func(c *train.Config) { c.MaxSteps = 13 }, nil, 3, false},
		{"ends before the trace", func(c *train.Config) { c.MaxSteps = 10 }, nil, 0, false},
		{"fails in the trace", func(c *train.Config) {
			c.EvaluateEvery = 12
			c.Evaluate = func(context.Context) ([]progress.Value, error) { return nil, given }
			c.Epochs, c.MaxSteps = 0, 18
		}, given, 2, false},
	} {
		t.Run(e.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "trace.json")
			var log bytes.Buffer
			commtest.OnRanks(t, 1, &comm.Options{Log: slog.New(slog.NewTextHandler(&log, nil))}, func(pg *comm.ProcessGroup) error {
				if e.isOn {
					profile.Of(pg.Device()).Start()
				}
				_, err := trained(t.Context(), pg, false, 5, func(c *train.Config) {
					c.Trace = path
					e.edit(c)
				})
				if !errors.Is(err, e.err) {
					return fmt.Errorf("the run ended with %v, want %v", err, e.err)
				}
				if on := profile.Of(pg.Device()).On(); on != e.isOn {
					return fmt.Errorf("the recorder is on after the run: %v, want %v", on, e.isOn)
				}
				return nil
			})
			trace, err := os.ReadFile(path)
			if n := strings.Count(string(trace), `"name":"optimizer"`); n != e.updates || (err == nil) != (e.updates > 0) {
				t.Errorf("the trace has %d updates (%v), want %d, in\n%.2000s", n, err, e.updates, trace)
			}
			if logs := strings.Contains(log.String(), "there is no trace"); logs != (e.updates == 0) {
				t.Errorf("the log is\n%s", &log)
			}
		})
	}
}

// Each rank writes a trace of the same steps, into a file of its own.
func TestTraceOfEachRank(t *testing.T) {
	dir := t.TempDir()
	commtest.OnRanks(t, 2, nil, func(pg *comm.ProcessGroup) error {
		_, err := trained(t.Context(), pg, false, 5, func(c *train.Config) {
			c.Epochs, c.MaxSteps, c.Trace = 0, 15, filepath.Join(dir, "trace.json")
			c.OnStep = func(context.Context, *train.Status) error { return nil }
		})
		return err
	})
	for _, name := range []string{"trace.json", "trace.rank1.json"} {
		trace, err := os.ReadFile(filepath.Join(dir, name))
		for _, part := range []string{`"name":"optimizer","cat":"compute"`, `"name":"data","cat":"host"`, `"name":"callback","cat":"host"`} {
			if n := strings.Count(string(trace), part); n != 5 || err != nil {
				t.Errorf("%s has %d spans %s (%v), want 5", name, n, part, err)
			}
		}
	}
}
