package zero

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// deep are options with which a deep model has a bucket for each layer, of less than twice the largest size.
var deep = ddp.Options{BucketCapMB: 0.0005}

// chain is a deep model. Its first weight is used at the end too, and blocks in the middle are computed again.
type chain struct {
	nn.Container
	first  *nn.Parameter
	blocks []nn.Module
	skips  bool // Forward leaves out a block
}

func newChain(o nn.LinearOptions, dropout float64) *chain {
	c := &chain{}
	layers := []nn.Module{}
	for i := range 7 {
		layers = append(layers, nn.Sequential(nn.Linear(width, width, &o), nn.Tanh(), nn.Dropout(dropout)))
		if i == 3 {
			layers[i] = nn.Checkpoint(layers[i])
		}
	}
	first := nn.Linear(width, width, &o)
	c.first = first.Parameters()[0]
	c.blocks = append([]nn.Module{nn.Add(&c.Container, "first", nn.Module(first))}, layers...)
	for i, l := range layers {
		nn.Add(&c.Container, fmt.Sprint("block", i), l)
	}
	return c
}

func (c *chain) Forward(x *autograd.Variable) *autograd.Variable {
	for i, b := range c.blocks {
		if i == 5 && c.skips {
			continue
		}
		x = b.Forward(x)
	}
	w := autograd.Slice(c.first.Var(), 0, 0, width, 1)
	if w.DType() != x.DType() {
		w = autograd.Cast(w, x.DType())
	}
	return autograd.MatMul(x, w)
}

// staged wraps a module in a stage.
func staged(net nn.Module, pg *comm.ProcessGroup, make maker, opts ddp.Options, stage int) (w wrapped, err error) {
	model, opt, err := New(net, pg, make, &Options{Options: opts, Stage: stage})
	if err != nil {
		return w, err
	}
	return wrapped{model, opt, opt, opt.Local()}, nil
}

// wholeBits returns the bytes of all parameters, in any stage.
func (w wrapped) wholeBits(net nn.Module) (all []byte, err error) {
	err = w.model.(*Model).Whole(func() error { all = allBits(net); return nil })
	return all, err
}

// Training in stages 2 and 3 has bit-identical losses, parameters and state to training in stage 1.
func TestStagesTrainAlike(t *testing.T) {
	steps := 4
	if testkit.IsLong() {
		steps = 30
	}
	bf := nn.LinearOptions{DType: device.BFloat16, Compute: device.Float32}
	half, wide, static := deep, deep, deep
	static.StaticGraph = true
	half.BucketCapMB /= 4 // of a quarter of the bytes
	wide.BucketCapMB, wide.ReduceDType = wide.BucketCapMB/2, device.Float32
	for _, c := range []struct {
		name    string
		make    maker
		o       nn.LinearOptions
		in      device.DType
		opts    ddp.Options
		dropout float64
		clip    bool
	}{
		{"SGD", sgd, double, device.Float64, deep, 0, false},
		{"AdamW with dropout", adamW, double, device.Float64, deep, 0.1, false},
		{"groups by name, clipped", grouped, double, device.Float64, deep, 0, true},
		{"AdamW, 16 bits", adamW, bf, device.Float32, half, 0, false},
		{"Muon, a block is unused", muon, double, device.Float64, static, 0, true},
		{"AdamW, 16 bits reduced in 32", adamW, bf, device.Float32, wide, 0, true},
		{"SGD, a block is unused", sgd, double, device.Float64, static, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			onBoth(t, func(pg *comm.ProcessGroup) error {
				var want []float64
				var parameters []byte
				var state wrapped
				for _, stage := range []int{1, 2, 3} {
					autograd.Generator(pg.Device()).Seed(1)
					net := newChain(c.o, c.dropout)
					net.skips = c.opts.StaticGraph
					w, err := staged(net, pg, c.make, c.opts, stage)
					if err != nil {
						return err
					}
					if n, slots := len(w.zero.shards.buckets), len(w.zero.shards.flow.slots); n != 8 || stage == 3 && slots != 3 {
						return fmt.Errorf("stage %d: %d buckets in %d slots, want 8 in 3", stage, n, slots)
					}
					var losses []float64
					for step := range steps {
						l := w.loss(pg, c.in, step)
						if err := l.Backward(nil); err != nil {
							return fmt.Errorf("stage %d, step %d: %w", stage, step, err)
						}
						if c.clip {
							if _, err := w.zero.ClipGradNorm(0.1, nil); err != nil {
								return err
							}
						}
						if err := w.opt.Step(); err != nil {
							return fmt.Errorf("stage %d, step %d: %w", stage, step, err)
						}
						w.opt.ZeroGrad()
						losses = append(losses, l.Item())
					}
					got := must.New(w.wholeBits(net))
					if stage == 1 {
						want, parameters, state = losses, got, w
						continue
					}
					if !slices.Equal(losses, want) {
						return fmt.Errorf("stage %d: losses %v, want %v", stage, losses, want)
					}
					if !bytes.Equal(got, parameters) {
						return fmt.Errorf("stage %d: the parameters differ from those of stage 1", stage)
					}
					if err := sameState(pg, w, state); err != nil {
						return fmt.Errorf("stage %d: %w", stage, err)
					}
				}
				return nil
			}, 1, 2, 4)
		})
	}
}

// In stage 3 an evaluation gathers what it uses, also between steps. Outside of operations parameters can be used in
// Whole alone, which keeps what is written there. Regroup keeps parameters and state.
func TestParametersInSlots(t *testing.T) {
	onBoth(t, func(pg *comm.ProcessGroup) error {
		x := samples(pg, device.Float64, 100)
		var want []byte
		for _, stage := range []int{1, 3} {
			net := newChain(double, 0)
			w := must.New(staged(net, pg, adamW, deep, stage))
			ema := must.New(optim.NewEMA(net, w.zero, nil))
			var got []byte
			evaluate := func() {
				autograd.NoGrad(pg.Device(), func() { got = append(got, bits(w.model.Forward(x))...) })
			}
			evaluate()
			for step := range 6 {
				if _, err := w.train(pg, device.Float64, step, step+1); err != nil {
					return err
				}
				evaluate()
				if step == 2 {
					if err := ema.Update(); err != nil {
						return err
					}
					if hasState, err := w.zero.Regroup(pg.Context(), comm.Membership{Steps: 3}); !hasState || err != nil {
						return fmt.Errorf("has the state: %v, %w", hasState, err)
					}
					_, err := ema.State()
					_, isConsistent := ema.Committed()
					if err != nil || isConsistent != (stage == 1) {
						return fmt.Errorf("stage %d: the averages of parameters that were divided anew are consistent: %v; %w", stage, isConsistent, err)
					}
				}
			}
			err := w.model.(*Model).Whole(func() error {
				if pg.Rank() == 0 {
					evaluate() // on one rank
				}
				v := net.first.Var()
				v.BumpVersion()
				return pg.Device().Kernels().Fill(pg.Device().Compute(), v.Tensor(), 0.5)
			})
			if err != nil {
				return err
			}
			evaluate()
			if want == nil {
				want = got
			} else if !bytes.Equal(got, want) {
				return errors.New("evaluations differ from those of stage 1")
			}
			var e *NotWholeError
			if err := panicking(func() { net.first.Var().Tensor() }); stage == 3 && (!errors.As(err, &e) || e.Param != "first.weight") {
				return fmt.Errorf("Tensor panics with %v", err)
			}
			err = autograd.Add(net.blocks[1].Parameters()[0].Var(), net.blocks[4].Parameters()[0].Var()).Err()
			if (err != nil) != (stage == 3) || err != nil && !strings.Contains(err.Error(), `uses the parameters of the buckets of "block0.0.bias" and "block3.0.bias"`) {
				return fmt.Errorf("stage %d: an operation on two buckets of a slot: %v", stage, err)
			}
		}
		return nil
	}, 2, 4)
}

// Forward passes in grad mode through which no backward pass comes do not become a part of each step.
func TestTapeWithoutAbandonedPasses(t *testing.T) {
	onBoth(t, func(pg *comm.ProcessGroup) error {
		var tapes []tape
		for _, abandoned := range []int{0, 3} {
			w := must.New(staged(newChain(double, 0), pg, sgd, deep, 3))
			l := w.loss(pg, device.Float64, 0)
			for range abandoned {
				w.loss(pg, device.Float64, 1)
			}
			if err := l.Backward(nil); err != nil {
				return err
			}
			tapes = append(tapes, w.zero.shards.flow.tape)
		}
		if len(tapes[0]) != len(tapes[1]) || len(tapes[0]) < 16 {
			return fmt.Errorf("the tape has %d moments, and after abandoned passes %d", len(tapes[0]), len(tapes[1]))
		}
		return nil
	}, 2)
}

// crossed uses its first two parameters in one operation, and again after the third one, which has the slot of the first.
type crossed []*nn.Parameter

func newCrossed() (c crossed) {
	for i := range 3 {
		c = append(c, nn.NewUnplacedParameter(fmt.Sprint(i), nn.Normal(1, 0.1), device.Float64, width))
	}
	return c
}

func (c crossed) Parameters() []*nn.Parameter { return c }

func (c crossed) Forward(x *autograd.Variable) *autograd.Variable {
	first, second, third := c[0].Var(), c[1].Var(), c[2].Var()
	x = autograd.Mul(x, autograd.Mul(first, second))
	return autograd.Mul(autograd.Mul(autograd.Mul(x, third), first), second)
}

// A forward pass in grad mode between steps, through which no backward pass comes, only costs more gathers.
func TestAbandonedPassBetweenSteps(t *testing.T) {
	onBoth(t, func(pg *comm.ProcessGroup) error {
		var want []float64
		for _, stage := range []int{1, 3} {
			opts := ddp.Options{BucketCapMB: 8 * width / float64(1<<20)}
			model, opt, err := New(newCrossed(), pg, sgd, &Options{Options: opts, Stage: stage, Slots: 2})
			if err != nil {
				return err
			}
			w := wrapped{model, opt, opt, opt.Local()}
			var losses []float64
			for step := range 3 {
				losses = append(losses, w.loss(pg, device.Float64, 10).Item())
				l, err := w.train(pg, device.Float64, step, step+1)
				if err != nil {
					return fmt.Errorf("stage %d: %w", stage, err)
				}
				losses = append(losses, l...)
			}
			if stage == 1 {
				want = losses
			} else if !slices.Equal(losses, want) {
				return fmt.Errorf("losses %v, want %v", losses, want)
			}
		}
		return nil
	}, 2)
}

// A captured evaluation is replayed neither in another call of Whole, whose parameters have other memory, nor in or
// outside of Whole if it was captured on the other side. A rank may capture an evaluation that another one runs uncaptured,
// as with batches of different sizes.
func TestEmulatedCapturedEvaluation(t *testing.T) {
	commtest.OnDevices(t, commtest.FakeGPUs(t, 2), quiet(), func(pg *comm.ProcessGroup) error {
		w := must.New(staged(newChain(nn.LinearOptions{}, 0), pg, sgd, deep, 3))
		x, dev := samples(pg, device.Float32, 100), pg.Device()
		forward := func(in ...*autograd.Variable) (y *autograd.Variable, err error) {
			autograd.NoGrad(dev, func() { y = w.model.Forward(in[0]).Retain() })
			return y, nil
		}
		captured, replays := autograd.Capture(dev, forward, nil), true
		step := 0
		check := func() error {
			for i := range 5 {
				evaluate := captured
				if !replays && pg.Rank() == 1 {
					evaluate = forward
				}
				got, err := evaluate(x)
				if err != nil {
					return err
				}
				if want := must.New(forward(x)); !bytes.Equal(bits(got), bits(want)) {
					return fmt.Errorf("call %d after step %d differs from an uncaptured one", i, step)
				}
			}
			return nil
		}
		train := func() error {
			step++
			_, err := w.train(pg, device.Float32, step-1, step)
			return err
		}
		whole := func() error {
			return w.model.(*Model).Whole(check)
		}
		alone := func() error {
			replays = false
			defer func() { replays = true }()
			return check()
		}
		for _, f := range []func() error{train, whole, train, whole, check, train, check, whole, alone, train, alone} {
			if err := f(); err != nil {
				return err
			}
		}
		return nil
	})
}

// Accumulated gradients of stages 2 and 3 are those of stage 1 but for the order of sums: each pass reduces.
func TestAccumulationInStages(t *testing.T) {
	onBoth(t, func(pg *comm.ProcessGroup) error {
		var want []float64
		for _, stage := range []int{1, 2, 3} {
			w := must.New(staged(newChain(double, 0), pg, sgd, deep, stage))
			var losses []float64
			for step := range 6 {
				if err := w.accumulate(pg, device.Float64, step, 3); err != nil {
					return err
				}
				if err := w.opt.Step(); err != nil {
					return err
				}
				w.opt.ZeroGrad()
				losses = append(losses, w.loss(pg, device.Float64, 0).Item())
			}
			if stage == 1 {
				want = losses
			}
			for i := range want {
				if math.Abs(losses[i]-want[i]) > 1e-12*want[i] {
					return fmt.Errorf("stage %d: losses %v, want %v", stage, losses, want)
				}
			}
		}
		return nil
	}, 2, 4)
}

// Ranks without inputs take part in the gathers and reductions of stages 2 and 3.
func TestUnevenInputsOfStages(t *testing.T) {
	for _, share := range shares {
		t.Run(share.name, func(t *testing.T) {
			onBoth(t, func(pg *comm.ProcessGroup) error {
				var want []byte
				for _, stage := range []int{1, 2, 3} {
					net := newChain(double, 0)
					w := must.New(staged(net, pg, adamW, deep, stage))
					if _, err := w.train(pg, device.Float64, 0, 1); err != nil { // shows all ranks the order of gathers
						return err
					}
					err := w.join(JoinOptions{}, func() error {
						if err := w.model.NoSync(func() error { return nil }); (err != nil) != (stage > 1) {
							return fmt.Errorf("NoSync: %w", err)
						}
						_, err := w.train(pg, device.Float64, 1, 1+share.of(pg.Rank(), pg.Size()))
						return err
					})
					if err == nil {
						_, err = w.train(pg, device.Float64, 20, 22)
					}
					if err != nil {
						return fmt.Errorf("stage %d: %w", stage, err)
					}
					got := must.New(w.wholeBits(net))
					if stage > 1 && !bytes.Equal(got, want) {
						return fmt.Errorf("stage %d: the parameters differ from those of stage 1", stage)
					}
					want = got
					if err := w.join(JoinOptions{DivideByActive: true}, func() error { return nil }); (err != nil) != (stage > 1) {
						return fmt.Errorf("stage %d: with DivideByActive: %v", stage, err)
					}
				}
				return nil
			}, 3)
		})
	}
}

// fallible is an identity that fails on request, in the forward or the backward pass.
type fallible struct{ forward, backward func() bool }

func (*fallible) Name() string                         { return "fallible" }
func (*fallible) Shape(in []device.Shape) device.Shape { return in[0] }
func (f *fallible) Forward(c *autograd.Call) error {
	if f.forward() {
		return errInjected
	}
	return c.Kernels.Copy(c.Stream, c.Out, c.In[0])
}
func (f *fallible) Backward(c *autograd.Call, i int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	if f.backward() {
		return errInjected
	}
	return c.Kernels.Axpby(c.Stream, dst, acc, g)
}

// faulty is a chain that goes wrong in one of several ways.
type faulty struct {
	*chain
	fault string // of the present step on this rank; "": none
}

func (f *faulty) Forward(x *autograd.Variable) *autograd.Variable {
	is := func(fault string) func() bool { return func() bool { return f.fault == fault } }
	for i, b := range f.blocks {
		if i == 3 {
			x = autograd.Apply(&fallible{is("forward"), is("backward")}, x)
		}
		if i == 5 && f.fault == "missing" {
			continue
		}
		x = b.Forward(x)
	}
	if f.fault == "not finite" {
		x = autograd.MulScalar(x, math.Inf(1))
	}
	return x
}

// If a pass fails on one rank of stage 2 or 3, all ranks skip the step with one error, and train on, to the parameters
// of stage 1.
func TestPassesOfStagesThatFail(t *testing.T) {
	faults := []string{"", "missing", "", "forward", "backward", "not finite", "missing", ""}
	onBoth(t, func(pg *comm.ProcessGroup) error {
		var want []byte
		for _, stage := range []int{1, 2, 3} {
			autograd.Generator(pg.Device()).Seed(1)
			net := &faulty{chain: newChain(double, 0)}
			opts := deep
			opts.CheckNonFinite = true
			w, err := staged(net, pg, adamW, opts, stage)
			if err != nil {
				return err
			}
			committed := 0
			for step, fault := range faults {
				if pg.Rank() == 1 {
					net.fault = fault
				}
				err := w.loss(pg, device.Float64, step).Backward(nil)
				if err == nil {
					err = w.opt.Step()
				}
				w.opt.ZeroGrad()
				var got string
				switch {
				case err == nil:
					committed++
				case errors.As(err, new(*reducer.MissingGradientError)) && strings.Contains(err.Error(), "injected"):
					got = "forward backward"
				case errors.As(err, new(*reducer.MissingGradientError)):
					got = "missing"
				case errors.As(err, new(*reducer.NonFiniteError)):
					got = "not finite"
				default:
					got = err.Error()
				}
				if !strings.Contains(got, fault) || fault == "" && got != "" {
					return fmt.Errorf("stage %d, step %d, with the fault %q: %v", stage, step, fault, err)
				}
			}
			if n, whole := w.opt.Committed(); n != committed || n != 3 || !whole {
				return fmt.Errorf("stage %d: %d steps committed, consistent: %v; want 3", stage, n, whole)
			}
			got := must.New(w.wholeBits(net))
			if stage > 1 && !bytes.Equal(got, want) {
				return fmt.Errorf("stage %d: the parameters differ from those of stage 1", stage)
			}
			want = got
		}
		return nil
	}, 2, 4)
}

// failing is a backend of one rank that fails to start the call that brings after to zero, once it is armed.
type failing struct {
	backend.Backend
	isArmed *bool
	after   *atomic.Int64
}

func (f failing) Start(c *backend.Call) (backend.Task, error) {
	if *f.isArmed && f.after.Add(-1) == 0 {
		return nil, errInjected
	}
	*f.isArmed = *f.isArmed || c.Name == "arm"
	return f.Backend.Start(c)
}

// arm arms the failing backends of rank 1, one of two. It waits until both ranks have called it.
func (w wrapped) arm(pg *comm.ProcessGroup, armed *sync.WaitGroup) error {
	defer armed.Wait()
	defer armed.Done()
	name := ""
	if pg.Rank() == 1 {
		name = "arm"
	}
	for _, group := range []*comm.ProcessGroup{pg, w.zero.shards.flow.group} {
		if err := group.With(&comm.CallOptions{Name: name}).Barrier().Sync(context.Background()); err != nil {
			return err
		}
	}
	return nil
}

// If any collective of a step of stage 3, or of OnRank, fails on one rank, all ranks end with the cause, within two seconds.
func TestCollectivesOfAStepThatFail(t *testing.T) {
	onRanks := func(o *comm.Options, f func(pg *comm.ProcessGroup) error) { commtest.OnGoroutines(t, 2, o, f) }
	for _, make := range []maker{adamW, muon} {
		collectivesThatFail(t, make, 1, onRanks, nil)
	}
	for leader := range 2 {
		collectivesThatFail(t, adamW, 1, onRanks, func(w wrapped, net nn.Module) error {
			return w.model.(*Model).OnRank(leader, func() error { allBits(net); return nil })
		})
	}
}

func TestEmulatedCollectivesOfAStepThatFail(t *testing.T) {
	devices := commtest.FakeGPUs(t, 2)
	collectivesThatFail(t, adamW, 5, func(o *comm.Options, f func(pg *comm.ProcessGroup) error) { commtest.OnDevices(t, devices, o, f) }, nil)
}

func TestGPUCollectivesOfAStepThatFail(t *testing.T) {
	devices := commtest.OpenGPUs(t, 2, 2)
	collectivesThatFail(t, adamW, 3, func(o *comm.Options, f func(pg *comm.ProcessGroup) error) { commtest.OnDevices(t, devices, o, f) }, nil)
}

// collectivesThatFail makes every stride-th collective of f, or of a step if f is nil, fail on rank 1, each in a new group of
// two ranks.
func collectivesThatFail(t *testing.T, make maker, stride int64, onRanks func(o *comm.Options, f func(pg *comm.ProcessGroup) error), f func(w wrapped, net nn.Module) error) {
	const steps = 2 // before the one with the failure
	for nth, made := int64(1), false; !made; nth += stride {
		var after atomic.Int64
		after.Store(nth)
		var armed sync.WaitGroup
		armed.Add(2)
		o := commtest.WrapBackend(quiet(), func(b backend.Backend) backend.Backend { return failing{b, new(bool), &after} })
		onRanks(o, func(pg *comm.ProcessGroup) error {
			net := newChain(double, 0)
			w := must.New(staged(net, pg, make, deep, 3))
			step := func(step int) error {
				if step == steps && f != nil {
					return f(w, net)
				}
				if err := w.loss(pg, device.Float64, step).Backward(nil); err != nil {
					return err
				}
				if _, err := w.zero.ClipGradNorm(1, nil); err != nil {
					return err
				}
				err := w.opt.Step()
				w.opt.ZeroGrad()
				return err
			}
			for n := range steps {
				if err := step(n); err != nil {
					return err
				}
			}
			if err := w.arm(pg, &armed); err != nil {
				return err
			}
			start := time.Now()
			err := step(steps)
			if took := time.Since(start); testkit.IsLong() && took > 2*time.Second {
				return fmt.Errorf("failure of call %d: the step took %v: %w", nth, took, err)
			}
			switch isLast := after.Load() > 0; {
			case isLast && err == nil:
				if pg.Rank() == 1 {
					made = true
				}
			case isLast || err == nil || !strings.Contains(err.Error(), errInjected.Error()):
				return fmt.Errorf("failure of call %d: got %v", nth, err)
			}
			return nil
		})
		if t.Failed() || nth > 100 {
			t.Fatalf("call %d", nth)
		}
		if made && nth < 16 {
			t.Errorf("only %d calls in a step", nth-1)
		}
	}
}

// In stage 3 too, ranks go on in the same processes after a failure, of any collective of a step.
func TestRegroupInStage3(t *testing.T) {
	// train makes six steps. The nth collective of the fourth fails, or the group is aborted before it if nth is 0. Without
	// a failure nth is negative, and without as many collectives isMade is true.
	train := func(make maker, nth int64) (parameters [2][]byte, isMade bool) {
		var after atomic.Int64
		after.Store(nth)
		o := commtest.WrapBackend(quiet(), func(b backend.Backend) backend.Backend { return failing{b, new(bool), &after} })
		backend.Survive(o)
		groups := must.New(comm.Local(2, o))
		var wg, armed sync.WaitGroup
		armed.Add(2)
		for r, pg := range groups {
			wg.Go(func() {
				defer pg.Close()
				net := newChain(double, 0)
				run := func() error {
					w := must.New(staged(net, pg, make, deep, 3))
					if _, err := pg.Reconfigure(t.Context(), w.zero.Progress()); err != nil {
						return err
					}
					_, err := w.train(pg, device.Float64, 0, 3)
					if err == nil && nth >= 0 { // both ranks have made three steps before one fails
						err = w.arm(pg, &armed)
					}
					if err != nil {
						return err
					}
					if nth == 0 && r == 1 {
						pg.Abort(errInjected)
					}
					steps := 4
					if _, err := w.train(pg, device.Float64, 3, 4); err != nil {
						w.opt.ZeroGrad()
						m, err := pg.Reconfigure(t.Context(), w.zero.Progress())
						if err != nil {
							return err
						}
						if hasState, err := w.zero.Regroup(t.Context(), m); !hasState || err != nil {
							return fmt.Errorf("has the state: %v, %w", hasState, err)
						}
						steps = m.Steps
					} else if r == 1 {
						isMade = true
						after.Store(0) // no later call fails
					}
					if _, err = w.train(pg, device.Float64, steps, 6); err == nil {
						parameters[r], err = w.wholeBits(net)
					}
					return err
				}
				if err := run(); err != nil {
					t.Errorf("rank %d, failure of collective %d: %v", r, nth, err)
					pg.Abort(err)
				}
			})
		}
		wg.Wait()
		return parameters, isMade
	}
	check := func(make maker, nth int64, want [2][]byte) (isMade bool) {
		got, isMade := train(make, nth)
		if !bytes.Equal(got[0], want[0]) || !bytes.Equal(got[1], want[0]) {
			t.Errorf("failure of collective %d: the parameters differ from those of an undisturbed job", nth)
		}
		return isMade
	}
	undisturbed, _ := train(muon, -1)
	check(muon, 0, undisturbed) // the state is lost if the ranks fail to exchange matrices
	undisturbed, _ = train(adamW, -1)
	for nth := int64(0); !check(adamW, nth, undisturbed) && !t.Failed(); nth += 3 {
	}
}
