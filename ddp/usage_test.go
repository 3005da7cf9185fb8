package ddp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// weave uses one layer in two blocks and outside of them. apply calls a block.
type weave struct {
	shared, a, b, last nn.Module
	apply              func(func(*autograd.Variable) *autograd.Variable, *autograd.Variable) *autograd.Variable
}

func newWeave(width int, checkpoints bool) nn.Module {
	linear := func() nn.Module { return nn.Linear(width, width, &nn.LinearOptions{DType: device.Float64}) }
	m := weave{shared: linear(), a: linear(), b: linear(), last: linear(), apply: autograd.Checkpoint}
	if !checkpoints {
		m.apply = func(f func(*autograd.Variable) *autograd.Variable, x *autograd.Variable) *autograd.Variable {
			return f(x)
		}
	}
	return m
}

func (m weave) Forward(x *autograd.Variable) *autograd.Variable {
	x = m.shared.Forward(x)
	for _, module := range []nn.Module{m.a, m.b} {
		x = m.apply(func(x *autograd.Variable) *autograd.Variable {
			return autograd.Tanh(module.Forward(m.apply(func(x *autograd.Variable) *autograd.Variable {
				return autograd.Tanh(m.shared.Forward(x))
			}, x)))
		}, x)
	}
	return m.last.Forward(x)
}

func (m weave) Parameters() (ps []*nn.Parameter) {
	for _, part := range []nn.Module{m.shared, m.a, m.b, m.last} {
		ps = append(ps, part.Parameters()...)
	}
	return ps
}

// Training with checkpoints is bit-identical to training without: every gradient becomes final
// once, wherever its parameter is used.
func TestCheckpointsChangeNothing(t *testing.T) {
	for _, opts := range []*Options{nil, {BucketCapMB: 1e-6, CheckReplicas: 1, CheckNonFinite: true}} {
		t.Run(fmt.Sprint("a bucket each: ", opts != nil), func(t *testing.T) {
			onAll(t, func(pg *comm.ProcessGroup, _ bool) error { return checkpointsChangeNothing(pg, opts) })
		})
	}
}

func checkpointsChangeNothing(pg *comm.ProcessGroup, opts *Options) error {
	const width, rows = 8, 4 // on each rank
	train := func(checkpoints bool) ([]byte, error) {
		model, err := New(newWeave(width, checkpoints), pg, opts)
		if err != nil {
			return nil, err
		}
		opt := must.New(optim.NewSGD(model.Parameters(), &optim.SGDOptions{LR: 0.5, Momentum: 0.9}))
		pass := func(seed uint64) error {
			x := samples(pg.Device(), 2*seed, rows*pg.Size(), width, pg.Rank(), pg.Size())
			y := samples(pg.Device(), 2*seed+1, rows*pg.Size(), width, pg.Rank(), pg.Size())
			return nn.MSELoss(model.Forward(x), y, nil).Backward(nil)
		}
		for step := range uint64(4) {
			err := model.NoSync(func() error { return pass(100 + step) })
			if err := errors.Join(err, pass(step), opt.Step()); err != nil {
				return nil, err
			}
			opt.ZeroGrad()
		}
		return parameterBytes(model.Parameters()), nil
	}
	without, err := train(false)
	if err != nil {
		return err
	}
	with, err := train(true)
	if err != nil {
		return err
	}
	if !bytes.Equal(with, without) {
		return errors.New("with checkpoints the parameters are others")
	}
	all, err := comm.AllGatherObject(context.Background(), pg, with)
	if err == nil && !bytes.Equal(all[0], with) {
		err = errors.New("the parameters differ from rank 0's")
	}
	return err
}

// If a recomputation fails on one rank, every rank gets an error, and the next pass works.
func TestAFailedRecomputationFailsOnAllRanks(t *testing.T) {
	onAll(t, func(pg *comm.ProcessGroup, isLagging bool) error {
		w := nn.NewParameter("w", autograd.Scalar(pg.Device(), 1))
		fail := &failsAgain{flawed: flawed{func() error { return nil }}}
		m := nn.Checkpoint(nn.Sequential(times{w}, applied{fail}))
		model := must.New(New(m, pg, nil))
		opt := must.New(optim.NewSGD(model.Parameters(), &optim.SGDOptions{LR: 1}))
		for step := range 3 {
			fail.run, fail.at = 0, 0
			if step == 1 && pg.Rank() == 1 {
				fail.at = 2
			}
			err := model.Forward(autograd.Scalar(pg.Device(), 1)).Backward(nil)
			err = errors.Join(err, opt.Step())
			opt.ZeroGrad()
			var missing *reducer.MissingGradientError
			if isMissing := errors.As(err, &missing) && strings.Contains(err.Error(), errInjected.Error()); isMissing != (step == 1) || !isMissing && err != nil {
				return fmt.Errorf("step %d: got %v", step, err)
			}
		}
		if w.Item() != -1 {
			return fmt.Errorf("w is %v after two good steps, want -1", w.Item())
		}
		return nil
	})
}

// failsAgain is an identity. Its at-th run fails, counted from 1.
type failsAgain struct {
	flawed
	run, at int
}

func (f *failsAgain) Forward(c *autograd.Call) error {
	if f.run++; f.run == f.at {
		return errInjected
	}
	return f.flawed.Forward(c)
}

// applied makes a module of a Function.
type applied struct{ f autograd.Function }

func (m applied) Forward(x *autograd.Variable) *autograd.Variable { return autograd.Apply(m.f, x) }
func (applied) Parameters() []*nn.Parameter                       { return nil }

// A parameter that is frozen before New has no place in the buckets. It gets rank 0's value, keeps
// it, and costs nothing in a step.
func TestFreezeBeforeNew(t *testing.T) {
	onAll(t, func(pg *comm.ProcessGroup, _ bool) error {
		net := mlp(4, device.Float64)
		ps := net.Parameters()
		for _, p := range ps[2:4] {
			p.Freeze()
		}
		if err := nn.Place(net, pg.Device(), uint64(pg.Rank())); err != nil {
			return err
		}
		wrap := func() (*Model, *optim.SGD, error) {
			model, err := New(net, pg, nil)
			return model, must.New(optim.NewSGD(net.Parameters(), &optim.SGDOptions{LR: 0.1, WeightDecay: 0.1})), err
		}
		model, opt, err := wrap()
		if err != nil {
			return err
		}
		step := func() error {
			x := samples(pg.Device(), 1, 4*pg.Size(), 4, pg.Rank(), pg.Size())
			defer opt.ZeroGrad()
			return errors.Join(nn.MSELoss(model.Forward(x), x, nil).Backward(nil), opt.Step())
		}
		changed := func() (which []string, err error) {
			before := make([][]byte, len(ps))
			for i, p := range ps {
				before[i] = bytesOf(p.Var())
			}
			if err := step(); err != nil {
				return nil, err
			}
			for i, p := range ps {
				if !bytes.Equal(before[i], bytesOf(p.Var())) {
					which = append(which, p.Name())
				}
			}
			return which, nil
		}
		if got, want := fmt.Sprint(model.Stats().Buckets[0].Params), "[4.bias 4.weight 0.bias 0.weight]"; got != want {
			return fmt.Errorf("the bucket has %v, want %v", got, want)
		}
		got, err := changed()
		if want := []string{"0.weight", "0.bias", "4.weight", "4.bias"}; err != nil || !slices.Equal(got, want) {
			return fmt.Errorf("a step changed %v, want %v; %v", got, want, err)
		}
		// After the module is wrapped again, other parameters may be frozen.
		for i, p := range ps {
			if p.Unfreeze(); i < 4 {
				p.Freeze()
			}
		}
		if model, opt, err = wrap(); err != nil {
			return err
		}
		got, err = changed()
		if want := []string{"4.weight", "4.bias"}; err != nil || !slices.Equal(got, want) {
			return fmt.Errorf("wrapped again, a step changed %v, want %v; %v", got, want, err)
		}
		return agree(t.Context(), pg, ps)
	})
}

// A parameter that is frozen after New has a place in the buckets but gets no gradient. Each step
// fails on every rank, with the parameter's name, until it is unfrozen or the module is wrapped
// again.
func TestFreezeAfterNew(t *testing.T) {
	onAll(t, func(pg *comm.ProcessGroup, _ bool) error {
		skip := false
		m := two{nn.NewParameter("first", autograd.Scalar(pg.Device(), 1)), nn.NewParameter("second", autograd.Scalar(pg.Device(), 2)), &skip}
		model := must.New(New(m, pg, &Options{BucketCapMB: 1e-6}))
		opt := must.New(optim.NewSGD(model.Parameters(), &optim.SGDOptions{LR: 1}))
		step := func() error {
			defer opt.ZeroGrad()
			return errors.Join(model.Forward(autograd.Scalar(pg.Device(), 1)).Backward(nil), opt.Step())
		}
		expect := func(what string, err error, first, second float64) error {
			if a, b := m.a.Item(), m.b.Item(); err != nil || a != first || b != second {
				return fmt.Errorf("%s: %v and %v, want %v and %v; %v", what, a, b, first, second, err)
			}
			return nil
		}
		m.b.Freeze()
		for range 2 {
			err := step()
			var missing *reducer.MissingGradientError
			if !errors.As(err, &missing) || len(missing.Missing) != pg.Size() || !slices.Equal(missing.Missing[1].Params, []string{"second"}) {
				return fmt.Errorf("frozen: got %v", err)
			}
			if err := expect("frozen", nil, 1, 2); err != nil {
				return err
			}
		}
		m.b.Unfreeze()
		if err := expect("unfrozen", step(), 0, 1); err != nil {
			return err
		}
		m.b.Freeze()
		model = must.New(New(m, pg, nil))
		return expect("wrapped again", step(), -1, 1)
	})
}

// A parameter that was frozen during New has no place in the buckets. If it is unfrozen, a backward
// pass panics: otherwise its replicas would drift apart.
func TestUnfreezeAfterNew(t *testing.T) {
	onAll(t, func(pg *comm.ProcessGroup, isLagging bool) (err error) {
		net := mlp(4, device.Float64)
		net.Parameters()[2].Freeze()
		model := must.New(New(net, pg, nil))
		net.Parameters()[2].Unfreeze()
		defer func() {
			if e, ok := recover().(*UnfrozenError); !ok || e.Rank != pg.Rank() || e.Param != "2.weight" {
				err = fmt.Errorf("panic with %v, want an UnfrozenError of 2.weight", e)
			}
		}()
		x := samples(pg.Device(), 1, 4*pg.Size(), 4, pg.Rank(), pg.Size())
		return nn.MSELoss(model.Forward(x), x, nil).Backward(nil)
	})
}

// An evaluation makes no calls, on one rank or on all, and does not disturb the step around it.
func TestEvaluationWithoutCommunication(t *testing.T) {
	var all counted
	calls := &all.calls
	opts := commtest.WrapBackend(nil, func(b backend.Backend) backend.Backend { return counting{b, &all} })
	commtest.OnRanks(t, commtest.Sizes(t, 4)[0], opts, func(pg *comm.ProcessGroup) error {
		w := nn.NewParameter("w", autograd.Scalar(pg.Device(), 2))
		model := must.New(New(times{w}, pg, &Options{CheckReplicas: 1}))
		if err := pg.Barrier().Wait(t.Context()); err != nil { // all ranks have finished New
			return err
		}
		if pg.Rank() == 0 {
			before := calls.Load()
			autograd.NoGrad(pg.Device(), func() {
				for range 3 {
					y := model.Forward(autograd.Scalar(pg.Device(), 5))
					if y.Item() != 10 || y.RequiresGrad() {
						t.Errorf("evaluated %v, requires a gradient: %v", y.Item(), y.RequiresGrad())
					}
				}
			})
			y := model.Forward(autograd.Scalar(pg.Device(), 5)) // this forward pass records a graph but has no backward pass
			if n := calls.Load() - before; y.Item() != 10 || n != 0 {
				t.Errorf("evaluating started %d calls, want none", n)
			}
		}
		if err := pg.MonitoredBarrier(t.Context()); err != nil { // the other ranks wait here and start no calls
			return err
		}
		if err := model.Forward(autograd.Scalar(pg.Device(), 3)).Backward(nil); err != nil || w.Grad().Item() != 3 {
			return fmt.Errorf("the step after it: gradient %v, %v", w.Grad().Item(), err)
		}
		return nil
	})
	if calls.Load() == 0 {
		t.Error("nothing is counted")
	}
}

// A program that calls the module instead of the model is told once that its gradients are not averaged.
func TestPassBesideTheModelIsLogged(t *testing.T) {
	log, count := logged()
	commtest.OnRanks(t, 1, &comm.Options{Log: log}, func(pg *comm.ProcessGroup) error {
		w := nn.NewParameter("w", autograd.Scalar(pg.Device(), 2))
		model := must.New(New(times{w}, pg, nil))
		beside := func() error { return times{w}.Forward(autograd.Scalar(pg.Device(), 5)).Backward(nil) }
		for _, c := range []struct {
			pass func() error
			want int
		}{{func() error { return model.NoSync(beside) }, 0}, {beside, 1}, {beside, 1}} {
			if err := c.pass(); err != nil {
				return err
			}
			if n := count("gradients are not averaged"); n != c.want {
				return fmt.Errorf("%d lines, want %d", n, c.want)
			}
		}
		return nil
	})
}

// The state of a wrapped model has the names of its module's state. Each can load the other's.
func TestStateOfAWrappedModel(t *testing.T) {
	onAll(t, func(pg *comm.ProcessGroup, isLagging bool) error {
		net, plain := mlp(4, device.Float64), mlp(4, device.Float64)
		if err := nn.Place(plain, pg.Device(), 7); err != nil {
			return err
		}
		model := must.New(New(net, pg, nil))
		if model.Unwrap() != net {
			return errors.New("Unwrap is not the module")
		}
		names := slices.Sorted(maps.Keys(nn.State(model)))
		if want := []string{"0.bias", "0.weight", "2.bias", "2.weight", "4.bias", "4.weight"}; !slices.Equal(names, want) {
			return fmt.Errorf("the state has %q, want %q", names, want)
		}
		same := func() bool { return bytes.Equal(parameterBytes(net.Parameters()), parameterBytes(plain.Parameters())) }
		opt := must.New(optim.NewSGD(model.Parameters(), &optim.SGDOptions{LR: 0.1}))
		for _, load := range []func() error{
			func() error { return nn.LoadState(t.Context(), model, nn.State(plain)) },
			func() error { return nn.LoadState(t.Context(), plain, nn.State(model)) },
		} {
			if same() {
				return errors.New("the modules are alike to begin with")
			}
			if err := load(); err != nil || !same() {
				return fmt.Errorf("the modules differ after one loads the other's state: %w", err)
			}
			x := samples(pg.Device(), 1, 4*pg.Size(), 4, pg.Rank(), pg.Size())
			if err := errors.Join(nn.MSELoss(model.Forward(x), x, nil).Backward(nil), opt.Step()); err != nil {
				return err
			}
		}
		return nil
	})
}
