package zero

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/gradsink"
	"github.com/goddp/goddp/internal/kernels"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// forked is a model that leaves out its middle on request.
type forked struct {
	head, middle, tail nn.Module
	skip               func() bool
}

func newForked(skip func() bool) forked {
	return forked{nn.Linear(width, width, &double), nn.Linear(width, width, &double), nn.Linear(width, width, &double), skip}
}

func (f forked) Forward(x *autograd.Variable) *autograd.Variable {
	x = f.head.Forward(x)
	if !f.skip() {
		x = f.middle.Forward(x)
	}
	return f.tail.Forward(x)
}

func (f forked) Parameters() []*nn.Parameter {
	return nn.Sequential(f.head, f.middle, f.tail).Parameters()
}

// middleFirst registers the middle first.
type middleFirst struct{ forked }

func (m middleFirst) Parameters() []*nn.Parameter {
	return nn.Sequential(m.middle, m.head, m.tail).Parameters()
}

// middleLast registers the middle last, so its gradients are in the first bucket.
type middleLast struct{ forked }

func (m middleLast) Parameters() []*nn.Parameter {
	return nn.Sequential(m.head, m.tail, m.middle).Parameters()
}

// Accumulated gradients are reduced by a pass that does not use their parameters, on one rank or on
// all, as without shards.
func TestAccumulatedThenUnused(t *testing.T) {
	for _, all := range []bool{false, true} {
		onBoth(t, func(pg *comm.ProcessGroup) error {
			return asWithoutShards(func(wrap wrapper) (nn.Module, error) {
				skip := false
				net := middleLast{newForked(func() bool { return skip })}
				w := must.New(wrap(net, pg, adamW, &ddp.Options{BucketCapMB: small.BucketCapMB, FindUnusedParameters: true}))
				for step := range 4 {
					skip = false
					if err := w.model.NoSync(func() error { return w.loss(pg, device.Float64, 2*step).Backward(nil) }); err != nil {
						return nil, err
					}
					skip = all || pg.Rank() == 1
					if _, err := w.train(pg, device.Float64, 2*step+1, 2*step+2); err != nil {
						return nil, err
					}
				}
				return net, nil
			})
		}, 2)
	}
}

// Parameters that the local optimizer leaves out do not change, and do not prevent the others from being trained. A step
// increases the version of each parameter but those, and Regroup that of each, with shards and without.
func TestParametersThatAreNotOptimized(t *testing.T) {
	onBoth(t, func(pg *comm.ProcessGroup) error {
		some := func(ps []*nn.Parameter) (Local, error) {
			return adamW(slices.DeleteFunc(slices.Clone(ps), func(p *nn.Parameter) bool { return p.Name() == "2.bias" }))
		}
		return asWithoutShards(func(wrap wrapper) (nn.Module, error) {
			net := mlp(double)
			w := must.New(wrap(net, pg, some, small))
			before := versions(net)
			if _, err := w.train(pg, device.Float64, 0, 4); err != nil {
				return nil, err
			}
			after := versions(net)
			for i, p := range net.Parameters() {
				want := before[i] + 4
				if p.Name() == "2.bias" {
					want = before[i]
				}
				if after[i] != want {
					return nil, fmt.Errorf("%s is at version %d after 4 steps, want %d", p.Name(), after[i], want)
				}
			}
			if w.zero != nil {
				if hasState, err := w.zero.Regroup(pg.Context(), comm.Membership{Steps: 4}); !hasState || err != nil {
					return nil, fmt.Errorf("has the state: %v, %w", hasState, err)
				}
				for i, now := range versions(net) {
					if now <= after[i] {
						return nil, fmt.Errorf("parameter %d is at version %d after Regroup, and was at %d", i, now, after[i])
					}
				}
			}
			return net, nil
		})
	}, 2)
}

func versions(m nn.Module) (all []uint64) {
	for _, p := range m.Parameters() {
		all = append(all, p.Var().Version())
	}
	return all
}

// If a rank lacks gradients, all ranks skip the step, even if that rank knows early and does not
// call Step. The next step is as without shards.
func TestMissingGradients(t *testing.T) {
	const steps, bad = 6, 1
	for _, calls := range []bool{true, false} {
		onBoth(t, func(pg *comm.ProcessGroup) error {
			return asWithoutShards(func(wrap wrapper) (nn.Module, error) {
				step, committed := 0, 0
				missing := func() bool { return step == 0 || step == 3 }
				net := newForked(func() bool { return missing() && pg.Rank() == bad })
				w := must.New(wrap(net, pg, adamW, small))
				for ; step < steps; step++ {
					err := w.loss(pg, device.Float64, step).Backward(nil)
					if err == nil || calls {
						err = w.opt.Step()
					}
					if missing() != errors.As(err, new(*reducer.MissingGradientError)) || !missing() && err != nil {
						return nil, fmt.Errorf("step %d: got %v", step, err)
					}
					w.opt.ZeroGrad()
					if !missing() {
						committed++
					}
					if n, whole := w.opt.Committed(); n != committed || !whole {
						return nil, fmt.Errorf("step %d: %d committed, whole: %v; want %d", step, n, whole, committed)
					}
				}
				return net, nil
			})
		}, 2, 4)
	}
}

// backwards registers its layers in the reverse of the order in which it uses them.
type backwards struct{ nn.Module }

func (b backwards) Parameters() []*nn.Parameter {
	ps := b.Module.Parameters()
	slices.Reverse(ps)
	return ps
}

// If rank 0's order differs from that of registration, the buckets are not rebuilt.
func TestBucketsAreNotRebuilt(t *testing.T) {
	onBoth(t, func(pg *comm.ProcessGroup) error {
		return asWithoutShards(func(wrap wrapper) (nn.Module, error) {
			net := backwards{mlp(double)}
			w := must.New(wrap(net, pg, adamW, small))
			_, err := w.train(pg, device.Float64, 0, 4)
			if rebuilt := w.stats().Rebuilt; (rebuilt != nil) != (w.zero == nil) {
				return nil, fmt.Errorf("rebuilt by %v, with shards: %v; %w", rebuilt, w.zero != nil, err)
			}
			return net, err
		})
	}, 2, 4)
}

// A pass that would add to gradients in shards panics.
func TestAccumulation(t *testing.T) {
	onBoth(t, func(pg *comm.ProcessGroup) error {
		w := must.New(divided(mlp(double), pg, sgd, small))
		if err := w.accumulate(pg, device.Float64, 0, 2); err != nil {
			return err
		}
		l := w.loss(pg, device.Float64, 1)
		var e *AccumulationError
		if err := panicking(func() { l.Backward(nil) }); !errors.As(err, &e) || e.Rank != pg.Rank() {
			return fmt.Errorf("a second pass panics with %v", err)
		}
		return nil
	}, 2)
}

// panicking returns the value with which f panics.
func panicking(f func()) (err error) {
	defer func() { err, _ = recover().(error) }()
	f()
	return nil
}

// Averages of the parameters are the same as without shards.
func TestAverages(t *testing.T) {
	onBoth(t, func(pg *comm.ProcessGroup) error {
		var averages [][]byte
		err := asWithoutShards(func(wrap wrapper) (nn.Module, error) {
			net := mlp(double)
			w := must.New(wrap(net, pg, adamW, small))
			ema := must.New(optim.NewEMA(net, w.opt, &optim.EMAOptions{Decay: 0.5}))
			for step := range 4 {
				_, err := w.train(pg, device.Float64, step, step+1)
				if err := errors.Join(err, ema.Update()); err != nil {
					return nil, err
				}
			}
			if err := ema.With(func() error { averages = append(averages, allBits(net)); return nil }); err != nil {
				return nil, err
			}
			_, err := w.train(pg, device.Float64, 4, 5) // fails unless the optimizer's state has survived
			return net, err
		})
		if err == nil && !bytes.Equal(averages[0], averages[1]) {
			err = errors.New("the averages differ from those of training without shards")
		}
		return err
	}, 2, 4)
}

// counting is a device whose marks store how many updates were enqueued before.
type counting struct {
	device.Device
	updates int
	pending func() bool // reports whether the outcome of the pass is unknown
	ahead   int         // the number of updates enqueued while it was unknown
}

type count struct {
	device.Event
	updates int
}

type countingStream struct {
	device.Stream
	d *counting
}

type countingKernels struct {
	kernels.Kernels
	d *counting
}

func (d *counting) Compute() device.Stream  { return countingStream{d.Device.Compute(), d} }
func (d *counting) Kernels() device.Kernels { return countingKernels{kernels.Of(d.Device), d} }
func (s countingStream) Mark() device.Event { return count{s.Stream.Mark(), s.d.updates} }
func (k countingKernels) SGD(s device.Stream, steps ...kernels.SGDStep) error {
	k.d.updates += len(steps)
	if k.d.pending() {
		k.d.ahead += len(steps)
	}
	return k.Kernels.SGD(s, steps...)
}

// noting is a backend that stores after how many updates each gather starts.
type noting struct {
	backend.Backend
	behind *[]int
}

func (n noting) Start(c *backend.Call) (backend.Task, error) {
	if c.Kind == backend.AllGather && strings.Contains(c.Name, "of parameters") {
		*n.behind = append(*n.behind, c.After.(count).updates)
	}
	return n.Backend.Start(c)
}

// onCounting runs f on two counting devices. For each device it returns after how many updates each
// gather started.
func onCounting(t *testing.T, f func(pg *comm.ProcessGroup, d *counting) error) (behind [][]int) {
	var all []device.Device
	for _, d := range devices(t, 2, true) {
		all = append(all, &counting{Device: d})
	}
	behind = make([][]int, len(all))
	o := quiet()
	next := make(chan int, len(all))
	for i := range all {
		next <- i
	}
	o = commtest.WrapBackend(o, func(b backend.Backend) backend.Backend { return noting{b, &behind[<-next]} })
	commtest.OnDevices(t, all, o, func(pg *comm.ProcessGroup) error { return f(pg, pg.Device().(*counting)) })
	return behind
}

// The gather of a bucket waits for the bucket's updates, not for those of later buckets. The
// updates are enqueued before it is known whether the step is skipped. The parameters that are used first are gathered first.
func TestGathersStartAfterTheirUpdates(t *testing.T) {
	behind := onCounting(t, func(pg *comm.ProcessGroup, d *counting) error {
		net := mlp(double)
		w := must.New(divided(net, pg, sgd, small))
		d.pending = gradsink.Of(net.Parameters()[0].Var()).Pending
		if _, err := w.train(pg, device.Float64, 0, 1); err != nil {
			return err
		}
		if d.ahead != d.updates {
			return fmt.Errorf("%d of %d updates were enqueued ahead of the outcome", d.ahead, d.updates)
		}
		return nil
	})
	for _, got := range behind { // three buckets with a weight and a bias each
		if want := []int{6, 4, 2}; !slices.Equal(got, want) {
			t.Errorf("gathers begin behind %v updates, want %v", got, want)
		}
	}
}

// Events of a skipped step do not affect the next step, even if that step does not make the update
// that ends a bucket.
func TestGatherAfterSkippedStep(t *testing.T) {
	behind := onCounting(t, func(pg *comm.ProcessGroup, d *counting) error {
		step := 0
		net := middleFirst{newForked(func() bool { return step == 2 })} // the middle's updates come last in the only bucket
		w := must.New(divided(net, pg, sgd, &ddp.Options{FindUnusedParameters: true, CheckNonFinite: true}))
		d.pending = gradsink.Of(net.Parameters()[0].Var()).Pending
		for ; step < 3; step++ {
			l := w.loss(pg, device.Float64, step)
			if step == 1 && pg.Rank() == 1 {
				l = autograd.MulScalar(l, math.Inf(1))
			}
			err := l.Backward(nil)
			if err == nil {
				err = w.opt.Step()
			}
			if errors.Is(err, device.ErrSkipped) != (step == 1) || err != nil && step != 1 {
				return fmt.Errorf("step %d: %v", step, err)
			}
			w.opt.ZeroGrad()
		}
		return nil
	})
	// In the second step the rank that knows early makes no updates, and the other rank enqueues
	// six, which do nothing. In the third step each rank makes four.
	if slices.SortFunc(behind, slices.Compare); !slices.EqualFunc(behind, [][]int{{6, 10}, {6, 16}}, slices.Equal) {
		t.Errorf("gathers begin behind %v updates", behind)
	}
}

// takes is a hook. The caller of this package must not set one.
type takes struct{ reducer.Hook }

// Invalid arguments are errors on every rank.
func TestInvalidArguments(t *testing.T) {
	commtest.OnRanks(t, 2, quiet(), func(pg *comm.ProcessGroup) error {
		if _, err := divided(mlp(double), pg, sgd, &ddp.Options{Hook: takes{}}); err == nil || !strings.Contains(err.Error(), "Options.Hook is zero.takes") {
			return fmt.Errorf("with a hook: %v", err)
		}
		w := nn.NewParameter("w", autograd.Scalar(pg.Device(), 1))
		if _, err := divided(twins{w}, pg, sgd, nil); err == nil || !strings.Contains(err.Error(), `named "w"`) {
			return fmt.Errorf("with two parameters of a name: %v", err)
		}
		mixed := nn.Sequential(nn.Linear(width, width, nil), nn.Linear(width, width, &nn.LinearOptions{DType: device.BFloat16, Compute: device.Float32}))
		if _, err := divided(mixed, pg, sgd, &ddp.Options{ReduceDType: device.Float32}); err == nil || !strings.Contains(err.Error(), "are of different types") {
			return fmt.Errorf("with two types reduced as one: %v", err)
		}
		kind := sgd
		if pg.Rank() == 1 {
			kind = adamW
		}
		var m *reducer.ModelMismatchError
		if _, err := divided(mlp(double), pg, kind, nil); !errors.As(err, &m) || m.What != "optimizer state" && m.Index >= 0 {
			return fmt.Errorf("with two kinds of optimizers: %v", err)
		}
		if _, _, err := New(mlp(double), pg, sgd, &Options{Stage: 1 + pg.Rank()}); !errors.As(err, &m) || m.Theirs != "Stage 2" {
			return fmt.Errorf("with two stages: %v", err)
		}
		otherParameter := func([]*nn.Parameter) (Local, error) { return sgd([]*nn.Parameter{w}) }
		if _, err := divided(mlp(double), pg, otherParameter, nil); err == nil || !strings.Contains(err.Error(), `optimizer of parameter "w", which was not among newLocal's arguments`) {
			return fmt.Errorf("with another parameter: %v", err)
		}
		if _, _, err := New(mlp(double), pg, muon, &Options{CopyShards: true}); err == nil || !strings.Contains(err.Error(), "CopyShards is set, but copies of shards lack") {
			return fmt.Errorf("with copies of shards and Muon: %v", err)
		}
		invalid := func(params []*nn.Parameter) (Local, error) { return optim.NewSGD(params, &optim.SGDOptions{LR: -1}) }
		if _, err := divided(mlp(double), pg, invalid, nil); !errors.As(err, new(*optim.OptionError)) {
			return fmt.Errorf("with a negative learning rate: %v", err)
		}
		return nil
	})
}

// twins has two parameters with the same name.
type twins struct{ w *nn.Parameter }

func (m twins) Forward(x *autograd.Variable) *autograd.Variable { return x }
func (m twins) Parameters() []*nn.Parameter {
	other := nn.NewParameter("w", autograd.Scalar(m.w.Var().Device(), 2))
	return []*nn.Parameter{m.w, other}
}
