package ddp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/internal/kernels"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/devicetest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// programs are the programs that this test binary can be.
var programs = map[string]func(){}

func TestMain(m *testing.M) { testkit.Main(m, programs) }

// The tests of this package that work with any number of ranks also run on two real processes.
func TestOnProcesses(t *testing.T) { commtest.Processes(t, 2, "GODDP_DEVICE=cpu") }

// samples returns this rank's part of a batch that the ranks share: the rank-th of ranks equal
// parts.
func samples(dev device.Device, seed uint64, rows, cols, rank, ranks int) *autograd.Variable {
	buf, err := dev.Alloc(rows / ranks * cols * 8)
	if err != nil {
		panic(err)
	}
	t := device.NewTensor(buf, device.Float64, rows/ranks, cols)
	if err := kernels.Of(dev).Normal(dev.Compute(), t, 0, 1, seed, uint64(rank*rows/ranks*cols)); err != nil {
		panic(err)
	}
	return autograd.FromTensor(dev, t)
}

func mlp(width int, dt device.DType) nn.Module {
	linear := func() nn.Module { return nn.Linear(width, width, &nn.LinearOptions{DType: dt}) }
	return nn.Sequential(linear(), nn.ReLU(), linear(), nn.ReLU(), linear())
}

// parameterBytes returns a copy of the memory of all parameters.
func parameterBytes(ps []*nn.Parameter) (out []byte) {
	for _, p := range ps {
		out = append(out, bytesOf(p.Var())...)
	}
	return out
}

// bytesOf returns a copy of v's memory.
func bytesOf(v *autograd.Variable) []byte {
	dev, out := v.Device(), make([]byte, v.Tensor().Bytes())
	if err := dev.CopyOut(context.Background(), dev.Compute(), out, v.Tensor().Buf); err != nil {
		panic(err)
	}
	return out
}

// Several ranks that share a batch train as one process with the whole batch: the losses are equal
// up to float64 rounding, dropout drops the same elements, and the ranks' parameters are bit-identical.
func TestTrainsAsOneProcess(t *testing.T) {
	const width, rows, steps = 16, 24, 20
	train := func(t *testing.T, isLagging bool, ranks int, opts *Options) (losses []float64) {
		losses = make([]float64, steps) // equal on all ranks
		onRanks(t, isLagging, ranks, func(pg *comm.ProcessGroup) error {
			dev := pg.Device()
			linear := func() nn.Module { return nn.Linear(width, width, &nn.LinearOptions{DType: device.Float64}) }
			net := nn.Sequential(linear(), nn.Dropout(0.1), nn.Tanh(), linear(), nn.ReLU(), linear())
			// Ranks start with different values. New sets them to those of rank 0.
			if err := nn.Place(net, dev, uint64(pg.Rank())); err != nil {
				return err
			}
			model := must.New(New(net, pg, opts))
			opt := must.New(optim.NewSGD(model.Parameters(), &optim.SGDOptions{LR: 0.05, Momentum: 0.9, WeightDecay: 1e-3}))
			for step := range steps {
				x := samples(dev, uint64(2*step), rows, width, pg.Rank(), ranks)
				y := samples(dev, uint64(2*step+1), rows, width, pg.Rank(), ranks)
				loss := nn.MSELoss(model.Forward(x), y, nil)
				if err := errors.Join(loss.Backward(nil), opt.Step()); err != nil {
					return err
				}
				opt.ZeroGrad()
				if err := pg.AllReduce(loss.Tensor(), comm.Avg).Wait(t.Context()); err != nil {
					return err
				}
				if mine := loss.Item(); commtest.InJob() || pg.Rank() == 0 {
					losses[step] = mine
				}
			}
			return agree(t.Context(), pg, model.Parameters())
		})
		return losses
	}
	want := train(t, false, 1, nil)
	if want[steps-1] >= want[0] {
		t.Fatalf("one process does not learn: losses %v", want)
	}
	for _, c := range []struct {
		ranks     int
		opts      *Options
		isLagging bool
	}{
		{2, nil, false}, {4, nil, false}, {3, &Options{BucketCapMB: 0.003}, false}, {3, &Options{BucketCapMB: 0.003}, true},
		{4, &Options{FirstBucketCapMB: 0.0001, BucketCapMB: 0.001}, false},
	} {
		t.Run(fmt.Sprintf("%d ranks, %+v, lagging: %v", c.ranks, c.opts, c.isLagging), func(t *testing.T) {
			for i, got := range train(t, c.isLagging, c.ranks, c.opts) {
				if !(math.Abs(got-want[i])/want[i] < 1e-9) {
					t.Errorf("step %d: loss %.15g, want %.15g", i, got, want[i])
				}
			}
		})
	}
}

// agree returns an error unless the parameters are bit-identical on all ranks.
func agree(ctx context.Context, pg *comm.ProcessGroup, params []*nn.Parameter) error {
	all, err := comm.AllGatherObject(ctx, pg, parameterBytes(params))
	if err == nil && !bytes.Equal(all[pg.Rank()], all[0]) {
		err = errors.New("the parameters differ from rank 0's")
	}
	return err
}

// Within NoSync gradients accumulate locally. The next pass reduces the sum, which is the gradient
// of the whole batch.
func TestNoSyncAccumulates(t *testing.T) {
	onAll(t, func(pg *comm.ProcessGroup, isLagging bool) error {
		w := nn.NewParameter("w", autograd.Scalar(pg.Device(), 1))
		model := must.New(New(times{w}, pg, nil))
		pass := func(x float32) error { return model.Forward(autograd.Scalar(pg.Device(), x)).Backward(nil) }
		r := float32(pg.Rank())
		err := model.NoSync(func() error {
			err := model.NoSync(func() error { return pass((1 + r) / 2) })
			return errors.Join(err, pass((1+r)/2)) // still within NoSync
		})
		if err != nil {
			return err
		}
		if got := w.Grad().Item(); got != float64(1+r) {
			return fmt.Errorf("accumulated %v, want this rank's own %v", got, 1+r)
		}
		// The unwrapped module does not communicate, and accumulates too.
		if err := model.Unwrap().(nn.Module).Forward(autograd.Scalar(pg.Device(), 2)).Backward(nil); err != nil {
			return err
		}
		if err := pass(10 * (1 + r)); err != nil {
			return err
		}
		n := float64(pg.Size())
		want := 11*(1+n)/2 + 2 // the mean of 11·(1+r) + 2 over the ranks
		if got := w.Grad().Item(); got != want {
			return fmt.Errorf("reduced to %v, want %v", got, want)
		}
		// Without ZeroGrad the next pass adds to the average.
		if err := pass(2 * r); err != nil {
			return err
		}
		want += n - 1
		if got := w.Grad().Item(); got != want {
			return fmt.Errorf("went on to %v, want %v", got, want)
		}
		// After a reducing pass, a pass through the unwrapped module adds this rank's gradient.
		if err := model.Unwrap().(nn.Module).Forward(autograd.Scalar(pg.Device(), r)).Backward(nil); err != nil {
			return err
		}
		if got := w.Grad().Item(); got != want+float64(r) {
			return fmt.Errorf("the pass past the model led to %v, want %v", got, want+float64(r))
		}
		w.Var().ZeroGrad()
		if g := w.Grad(); g != nil {
			return fmt.Errorf("after ZeroGrad the gradient is %v, want none", g.Item())
		}
		if err := pass(2 * r); err != nil {
			return err
		}
		if got := w.Grad().Item(); got != n-1 {
			return fmt.Errorf("after ZeroGrad %v, want %v", got, n-1)
		}
		return nil
	})
}

// times is the model y = w·x.
type times struct{ w *nn.Parameter }

func (m times) Forward(x *autograd.Variable) *autograd.Variable {
	return autograd.Mul(m.w.Var(), x)
}
func (m times) Parameters() []*nn.Parameter { return []*nn.Parameter{m.w} }

// two is a model with two parameters. It leaves out the second on request.
type two struct {
	a, b *nn.Parameter
	skip *bool
}

func (m two) Forward(x *autograd.Variable) *autograd.Variable {
	y := autograd.Mul(m.a.Var(), x)
	if *m.skip {
		return y
	}
	return autograd.Add(y, autograd.Mul(m.b.Var(), x))
}
func (m two) Parameters() []*nn.Parameter { return []*nn.Parameter{m.a, m.b} }

// onRanks runs f on several ranks. With isLagging, their devices run work later than the host
// enqueues it, as GPUs do; otherwise at once.
func onRanks(t *testing.T, isLagging bool, ranks int, f func(pg *comm.ProcessGroup) error) {
	t.Helper()
	if !isLagging {
		commtest.OnRanks(t, ranks, nil, f)
		return
	}
	var devices []device.Device
	for range ranks {
		devices = append(devices, devicetest.Lagging(cpu.New(nil)))
	}
	commtest.OnDevices(t, devices, nil, f)
}

// onBoth runs f with both kinds of devices, or in a job only with the job's devices.
func onBoth(t *testing.T, ranks int, f func(pg *comm.ProcessGroup, isLagging bool) error) {
	if commtest.InJob() {
		commtest.OnRanks(t, ranks, nil, func(pg *comm.ProcessGroup) error { return f(pg, pg.Backend() != "host") })
		return
	}
	for _, isLagging := range []bool{false, true} {
		t.Run(fmt.Sprint("lagging: ", isLagging), func(t *testing.T) {
			onRanks(t, isLagging, ranks, func(pg *comm.ProcessGroup) error { return f(pg, isLagging) })
		})
	}
}

// expectedErrors returns those of the errors of Backward and Step that must report the failure of
// rank bad. On the other ranks a lagging device reports it only in Step, but a GPU may be done
// before Backward returns.
func expectedErrors(pg *comm.ProcessGroup, isLagging bool, bad int, backward, step error) ([]error, error) {
	switch later := isLagging && pg.Rank() != bad; {
	case later && backward == nil:
		return []error{step}, nil
	case later && pg.Backend() == "host":
		return nil, fmt.Errorf("Backward knows already: %v", backward)
	}
	return []error{backward, step}, nil
}

// onAll runs f, which works with any number of ranks, on 2 and 4 ranks with both kinds of devices.
func onAll(t *testing.T, f func(pg *comm.ProcessGroup, isLagging bool) error) {
	for _, ranks := range commtest.Sizes(t, 2, 4) {
		t.Run(fmt.Sprintf("%d ranks", ranks), func(t *testing.T) { onBoth(t, ranks, f) })
	}
}

// onEach runs f, which works with any number of ranks, on 2 and 4 ranks.
func onEach(t *testing.T, f func(pg *comm.ProcessGroup) error) {
	for _, ranks := range commtest.Sizes(t, 2, 4) {
		commtest.OnRanks(t, ranks, &comm.Options{Log: slog.New(slog.DiscardHandler)}, f)
	}
}

// If one rank lacks a gradient in a step, every rank gets the typed error in that step: from Step
// if the host cannot know it before. No rank applies the step, and the next step works again.
func TestMissingGradient(t *testing.T) {
	const bad = 1
	onBuckets(t, Options{}, func(pg *comm.ProcessGroup, isLagging bool, opts *Options) error {
		skip := false
		m := two{nn.NewParameter("first", autograd.Scalar(pg.Device(), 1)), nn.NewParameter("second", autograd.Scalar(pg.Device(), 2)), &skip}
		model := must.New(New(m, pg, opts))
		opt := must.New(optim.NewSGD(model.Parameters(), &optim.SGDOptions{LR: 1}))
		// In step s the parameters are 1-k and 2-k after k successful steps.
		good := 0
		for step := range 5 {
			failing := step == 1 || step == 2
			skip = failing && pg.Rank() == bad
			err := model.Forward(autograd.Scalar(pg.Device(), 1)).Backward(nil)
			serr := opt.Step()
			if failing {
				errs, early := expectedErrors(pg, isLagging, bad, err, serr)
				if early != nil {
					return fmt.Errorf("step %d: %w", step, early)
				}
				for _, err := range errs {
					var missing *reducer.MissingGradientError
					if !errors.As(err, &missing) {
						return fmt.Errorf("step %d: got %v, want a MissingGradientError", step, err)
					}
					if len(missing.Missing) != 1 || missing.Missing[0].Rank != bad || !slices.Equal(missing.Missing[0].Params, []string{"second"}) {
						return fmt.Errorf("step %d: %+v, want rank %d's \"second\"", step, missing.Missing, bad)
					}
					if !strings.Contains(err.Error(), `parameter "second" on rank 1`) {
						return fmt.Errorf("step %d: %q names neither", step, err)
					}
				}
			} else {
				if err := errors.Join(err, serr); err != nil {
					return fmt.Errorf("step %d: %w", step, err)
				}
				good++
			}
			opt.ZeroGrad()
			if a, b := m.a.Item(), m.b.Item(); a != float64(1-good) || b != float64(2-good) {
				return fmt.Errorf("step %d: parameters %v and %v after %d good steps", step, a, b, good)
			}
		}
		return nil
	})
}

// If the pass of one rank fails after the model's gradients are computed, every rank still gets an error, and no rank
// applies the step.
func TestAFailedPassFailsOnAllRanks(t *testing.T) {
	onAll(t, func(pg *comm.ProcessGroup, isLagging bool) error {
		w := nn.NewParameter("w", autograd.Scalar(pg.Device(), 1))
		model := must.New(New(times{w}, pg, nil))
		opt := must.New(optim.NewSGD(model.Parameters(), &optim.SGDOptions{LR: 1}))
		err := model.Forward(failIf(pg.Rank() == 1, autograd.Scalar(pg.Device(), 1).RequireGrad())).Backward(nil)
		if isLagging && pg.Rank() != 1 && err == nil {
			err = w.Var().GradErr()
		}
		if !errors.As(err, new(*reducer.MissingGradientError)) || !strings.Contains(err.Error(), "rank 1, whose pass failed") || !strings.Contains(err.Error(), errInjected.Error()) {
			return fmt.Errorf("got %v", err)
		}
		if err := opt.Step(); err == nil || w.Item() != 1 {
			return fmt.Errorf("Step returned %v and left w at %v", err, w.Item())
		}
		opt.ZeroGrad()
		if err := model.Forward(autograd.Scalar(pg.Device(), 3)).Backward(nil); err != nil || w.Grad().Item() != 3 {
			return fmt.Errorf("the next pass gave %v, want 3: %w", w.Grad().Item(), err)
		}
		return opt.Step()
	})
}

var errInjected = errors.New("injected")

// flawed is an identity. Its backward returns f's error.
type flawed struct{ f func() error }

func (flawed) Name() string                         { return "flawed" }
func (flawed) Shape(in []device.Shape) device.Shape { return in[0] }
func (flawed) Forward(c *autograd.Call) error       { return c.Kernels.Copy(c.Stream, c.Out, c.In[0]) }
func (f flawed) Backward(c *autograd.Call, _ int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	if err := f.f(); err != nil {
		return err
	}
	return c.Kernels.Axpby(c.Stream, dst, acc, g)
}

// failIf returns x. If fails is true, the backward pass through the result fails.
func failIf(fails bool, x *autograd.Variable) *autograd.Variable {
	return autograd.Apply(flawed{func() error {
		if fails {
			return errInjected
		}
		return nil
	}}, x)
}

// tied uses one parameter in two places, under two names, and has a frozen parameter.
type tied struct{ w, again, frozen *nn.Parameter }

func (m tied) Forward(x *autograd.Variable) *autograd.Variable {
	y := autograd.Mul(m.again.Var(), autograd.Mul(m.w.Var(), x))
	return autograd.Add(y, m.frozen.Var())
}
func (m tied) Parameters() []*nn.Parameter { return []*nn.Parameter{m.w, m.again} }
func (m tied) Buffers() []*nn.Buffer {
	return []*nn.Buffer{nn.NewBuffer("mean", m.frozen.Var())}
}

// The gradient of a parameter that is used twice is reduced once, with the sum of both. New sets
// buffers to those of rank 0.
func TestSharedParametersAndBuffers(t *testing.T) {
	onAll(t, func(pg *comm.ProcessGroup, isLagging bool) error {
		v := autograd.Scalar(pg.Device(), 3)
		mean := autograd.Scalar(pg.Device(), float32(10+pg.Rank()))
		m := tied{nn.NewParameter("w", v), nn.NewParameter("again", v), nn.NewParameter("mean", mean)}
		model := must.New(New(m, pg, nil))
		if got := mean.Item(); got != 10 {
			return fmt.Errorf("the buffer is %v, want rank 0's 10", got)
		}
		if bs := nn.Buffers(model); len(bs) != 1 || bs[0].Name() != "mean" {
			return fmt.Errorf("the model's buffers are %v", bs)
		}
		if err := model.Forward(autograd.Scalar(pg.Device(), float32(pg.Rank()))).Backward(nil); err != nil {
			return err
		}
		if got, want := v.Grad().Item(), 3*float64(pg.Size()-1); got != want { // 2·w·x, averaged over the ranks; x is the rank
			return fmt.Errorf("the gradient is %v, want %v", got, want)
		}
		return nil
	})
}

// If models or options differ between ranks, or are invalid on one rank, New returns an error on every rank that names
// the difference, and the group remains usable.
func TestModelsThatDiffer(t *testing.T) {
	layers := func(in, out int, dt device.DType) nn.Module {
		return nn.Sequential(nn.Linear(4, 4, &nn.LinearOptions{DType: dt}), nn.Linear(in, out, &nn.LinearOptions{DType: dt}))
	}
	freeze := func(i int) nn.Module {
		net := layers(4, 4, device.Float32)
		if i >= 0 {
			net.Parameters()[i].Freeze()
		}
		return net
	}
	type models func(pg *comm.ProcessGroup, rank int) nn.Module
	type options func(rank int) Options
	scalar := func(pg *comm.ProcessGroup, _ int) nn.Module {
		return times{nn.NewParameter("w", autograd.Scalar(pg.Device(), 1))}
	}
	half := func(*comm.ProcessGroup, int) nn.Module { return layers(4, 4, device.BFloat16) }
	same := func(int) Options { return Options{} }
	for _, c := range []struct {
		name     string
		model    models
		opts     options
		mismatch bool // a ModelMismatchError
		want     []string
		wantOf4  string
	}{
		{"a shape", func(_ *comm.ProcessGroup, r int) nn.Module { return layers(4, 3+r%2, device.Float32) }, same, true,
			[]string{"parameter 2", `"1.weight" float32[4 4] on rank 1`, `"1.weight" float32[3 4] on rank 0`}, ""},
		{"parameters on some ranks", func(_ *comm.ProcessGroup, r int) nn.Module {
			return []nn.Module{nn.ReLU(), layers(4, 4, device.Float32)}[r%2]
		}, same, true,
			[]string{"4 parameters on rank 1", "0 on rank 0"}, ""},
		{"a number", func(_ *comm.ProcessGroup, r int) nn.Module {
			return []nn.Module{nn.Linear(4, 4, nil), layers(4, 4, device.Float32)}[r%2]
		}, same, true,
			[]string{"4 parameters on rank 1", "2 on rank 0"}, ""},
		{"without a sync", func(pg *comm.ProcessGroup, r int) nn.Module {
			return times{nn.NewParameter("w", autograd.Zeros(pg.Device(), device.Float32, 1+r))}
		}, func(int) Options { return Options{SkipInitSync: true} }, true, []string{`"w" float32[2] on rank 1`}, ""},
		{"a buffer", func(pg *comm.ProcessGroup, r int) nn.Module {
			return pair{two{skip: new(bool), a: nn.NewParameter("a", autograd.Scalar(pg.Device(), 1)), b: nn.NewParameter("b", autograd.Scalar(pg.Device(), 1))},
				[]*nn.Buffer{nn.NewBuffer("mean", autograd.Zeros(pg.Device(), device.Float32, 2+r))}}
		}, same, true, []string{`buffer 0 is "mean" float32[3] on rank 1`}, ""},
		{"frozen on rank 1", func(_ *comm.ProcessGroup, r int) nn.Module { return freeze([]int{-1, 1, -1, -1}[r]) }, same, true,
			[]string{`parameter 1 is "0.bias" float32[4], frozen, on rank 1, "0.bias" float32[4] on rank 0`}, ""},
		{"frozen on all but rank 0", func(_ *comm.ProcessGroup, r int) nn.Module { return freeze([]int{-1, 2, 2, 2}[r]) }, same, true,
			[]string{`"1.weight" float32[4 4], frozen, on rank 1`, `"1.weight" float32[4 4] on rank 0`}, "ranks 1-3 differ from rank 0"},
		{"another frozen on each", func(_ *comm.ProcessGroup, r int) nn.Module { return freeze(r) }, same, true,
			[]string{`"0.weight" float32[4 4] on rank 1`, `"0.weight" float32[4 4], frozen, on rank 0`}, "ranks 1-3 differ from rank 0"},
		{"types of gradients", half, func(r int) Options { return Options{ReduceDType: []device.DType{0, device.Float32}[r%2]} }, true,
			[]string{"on rank 1", "on rank 0"}, ""},
		{"caps", scalar, func(r int) Options { return Options{BucketCapMB: float64(1 + r)} }, true,
			[]string{"bucket cap 0 is 2097152 bytes on rank 1, 1048576 bytes on rank 0"}, ""},
		{"checks", scalar, func(r int) Options { return Options{CheckReplicas: 1 + r} }, true,
			[]string{"option 0 is CheckReplicas 2 on rank 1, CheckReplicas 1 on rank 0"}, ""},
		{"buffers of each rank", scalar, func(r int) Options { return Options{LocalBuffers: r == 1} }, true, []string{"LocalBuffers true on rank 1"}, ""},
		{"a static graph", scalar, func(r int) Options { return Options{StaticGraph: r == 1, FindUnusedParameters: true} }, true,
			[]string{"unused parameters fixed on rank 1, unused parameters found on rank 0"}, ""},
		{"hooks", scalar, func(r int) Options { return Options{Hook: []reducer.Hook{nil, passing{}}[r%2]} }, true,
			[]string{"hook ddp.passing on rank 1, hook <nil> on rank 0"}, ""},
		{"a negative cap", scalar, func(r int) Options { return Options{BucketCapMB: float64(-r)} }, false, []string{"rank 1: reducer: a bucket cap is -1 MiB"}, ""},
		{"a negative number of checks", scalar, func(r int) Options { return Options{CheckReplicas: -r} }, false, []string{"rank 1: CheckReplicas is -1"}, ""},
		{"caps of both kinds", scalar, func(int) Options { return Options{BucketCapsMB: []float64{1}, BucketCapMB: 1} }, false,
			[]string{"BucketCapsMB is [1], so FirstBucketCapMB and BucketCapMB must be 0"}, ""},
		{"an unknown name", scalar, func(int) Options { return Options{Ignore: []string{"w", "e"}} }, false,
			[]string{`Ignore names "e", which is neither a parameter nor a buffer`}, ""},
		{"a type that rounds", half, func(int) Options { return Options{ReduceDType: device.BFloat16} }, false, []string{"ReduceDType is bfloat16, want Float32"}, ""},
		{"no parameters", func(*comm.ProcessGroup, int) nn.Module { return nn.ReLU() }, same, false, []string{"no parameter"}, ""},
		{"a model", func(pg *comm.ProcessGroup, r int) nn.Module { return must.New(New(scalar(pg, r), pg, nil)) }, same, false,
			[]string{"*ddp.Model, which already wraps a module"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			onEach(t, func(pg *comm.ProcessGroup) error {
				opts := c.opts(pg.Rank())
				_, err := New(c.model(pg, pg.Rank()), pg, &opts)
				if m := (*reducer.ModelMismatchError)(nil); err == nil || errors.As(err, &m) != c.mismatch || c.mismatch && m.Rank != 1 {
					return fmt.Errorf("got %v, want a ModelMismatchError of rank 1: %v", err, c.mismatch)
				}
				for _, want := range c.want {
					if !strings.Contains(err.Error(), want) {
						return fmt.Errorf("%q lacks %q", err, want)
					}
				}
				if pg.Size() == 4 && !strings.Contains(err.Error(), c.wantOf4) {
					return fmt.Errorf("%q lacks %q", err, c.wantOf4)
				}
				return pg.Barrier().Wait(t.Context()) // no collective has failed
			})
		})
	}
}

// Gradients are views of the buckets, in reverse order of registration, and stay there.
func TestGradientsLiveInTheBuckets(t *testing.T) {
	onAll(t, func(pg *comm.ProcessGroup, isLagging bool) error {
		model := must.New(New(mlp(300, device.Float32), pg, &Options{BucketCapMB: 0.5}))
		var got [][]string
		for _, b := range model.Stats().Buckets {
			got = append(got, b.Params)
			if unit := pg.Size() * device.Align; b.Padded%unit != 0 || b.Padded < b.Bytes {
				return fmt.Errorf("a bucket of %d bytes reduces %d", b.Bytes, b.Padded)
			}
		}
		want := [][]string{{"4.bias", "4.weight", "2.bias", "2.weight"}, {"0.bias", "0.weight"}}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			return fmt.Errorf("buckets %v, want %v", got, want)
		}
		x := autograd.Zeros(pg.Device(), device.Float32, 4, 300)
		var places []uintptr
		for range 2 {
			if err := nn.MSELoss(model.Forward(x), x, nil).Backward(nil); err != nil {
				return err
			}
			var now []uintptr
			for _, p := range model.Parameters() {
				at := p.Grad().Tensor().Buf.Addr()
				if at%device.Align != 0 {
					return fmt.Errorf("%s's gradient is at %#x", p.Name(), at)
				}
				now = append(now, at)
			}
			if places != nil && !slices.Equal(places, now) {
				return fmt.Errorf("gradients moved from %#x to %#x", places, now)
			}
			places = now
		}
		return nil
	})
}

// If a peer leaves during training, Backward returns an error and does not hang.
func TestPeerThatLeavesIsErrorOfBackward(t *testing.T) {
	onEach(t, func(pg *comm.ProcessGroup) error {
		w := nn.NewParameter("w", autograd.Scalar(pg.Device(), 1))
		model := must.New(New(times{w}, pg, nil))
		leaves := pg.Size() - 1
		if pg.Rank() == leaves {
			return pg.Close()
		}
		err := errors.Join(model.Forward(autograd.Scalar(pg.Device(), 1)).Backward(nil), w.Var().GradErr())
		if !errors.Is(err, comm.ErrPeerLost) || !strings.Contains(err.Error(), fmt.Sprint("rank ", leaves)) || !strings.Contains(err.Error(), "bucket 0") {
			return fmt.Errorf("got %v", err)
		}
		if opt := must.New(optim.NewSGD(model.Parameters(), &optim.SGDOptions{LR: 1})); !errors.Is(opt.Step(), comm.ErrPeerLost) {
			return errors.New("the optimizer stepped on it")
		}
		return nil
	})
}
