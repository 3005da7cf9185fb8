package ddp

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/internal/buckets"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// summedSwitches is switches with a buffer to which each Forward adds x.
type summedSwitches struct {
	switches
	sum *nn.Buffer
}

func newSummedSwitches(dev device.Device, n int) summedSwitches {
	return summedSwitches{newSwitches(dev, n), nn.NewBuffer("sum", autograd.FromSlice(dev, []float64{0}))}
}

// trainedSummedSwitches is trainedSwitches with a buffer.
func trainedSummedSwitches(pg *comm.ProcessGroup, n int, opts *Options, sgd *optim.SGDOptions) (summedSwitches, *Model, *optim.SGD) {
	m := newSummedSwitches(pg.Device(), n)
	model := must.New(New(m, pg, opts))
	return m, model, must.New(optim.NewSGD(model.Parameters(), sgd))
}

func (m summedSwitches) Forward(x *autograd.Variable) *autograd.Variable {
	dev := x.Device()
	if err := dev.Kernels().Axpby(dev.Compute(), m.sum.Var().Tensor(), device.Accum{Alpha: 1, Beta: 1}, x.Tensor()); err != nil {
		panic(err)
	}
	return m.switches.Forward(x)
}

func (m summedSwitches) Buffers() []*nn.Buffer { return []*nn.Buffer{m.sum} }

// inputs are distributions of inputs: of returns the number of inputs of a rank.
var inputs = []struct {
	name string
	of   func(rank, ranks int) int
}{
	{"rank 0 runs out first", func(rank, _ int) int { return 3 + rank }},
	{"rank 0 has none", func(rank, _ int) int { return 2 * rank }},
	{"rank 0 runs out last", func(rank, ranks int) int { return 2 + 2*(ranks-1-rank) }},
	{"all have as many", func(int, int) int { return 4 }},
}

// unevenly are combinations of options for training with uneven inputs.
var unevenly = []struct {
	name     string
	opts     Options
	join     JoinOptions
	momentum float64
	every    int // the number of passes per step; all but the last only accumulate
	use      func(rank int) []int
}{
	{"plain", Options{}, JoinOptions{}, 0, 1, func(int) []int { return []int{0, 1, 2, 3} }},
	{"a bucket each, in another order", Options{BucketCapMB: 1e-6, CheckReplicas: 1}, JoinOptions{}, 0, 1, func(int) []int { return []int{2, 0, 3, 1} }},
	{"by the active ranks", Options{BucketCapMB: 1e-6, CheckNonFinite: true}, JoinOptions{DivideByActive: true}, 0, 1, func(int) []int { return []int{2, 0, 3, 1} }},
	{"momentum", Options{CheckReplicas: 2}, JoinOptions{}, 0.5, 1, func(int) []int { return []int{0, 1, 2, 3} }},
	{"accumulating", Options{BucketCapMB: 1e-6}, JoinOptions{}, 0.5, 3, func(int) []int { return []int{2, 0, 3, 1} }},
	{"unused parameters", Options{BucketCapMB: 1e-6, FindUnusedParameters: true}, JoinOptions{}, 0.5, 2, func(rank int) []int { return []int{1 + rank%2, 0} }},
	{"a static graph", Options{BucketCapMB: 1e-6, StaticGraph: true}, JoinOptions{}, 0.5, 2, func(rank int) []int { return []int{1 + rank%2, 0} }},
	{"a hook", Options{BucketCapMB: 1e-6, Hook: passing{}}, JoinOptions{DivideByActive: true}, 0.5, 2, func(int) []int { return []int{0, 1, 2, 3} }},
}

// passing is a hook that does the same as no hook.
type passing struct{}

func (passing) Reduce(b reducer.GradBucket) reducer.Reduction {
	return b.Group.With(&comm.CallOptions{Name: b.Name, After: b.After}).AllReduce(b.Flat, b.Op)
}

// Ranks with different numbers of inputs make the steps of a process that sees all inputs. In the
// end they have the same parameters, buffers and optimizer state, and can go on training with equal
// numbers.
func TestUnevenInputs(t *testing.T) {
	for _, how := range unevenly {
		for _, in := range inputs {
			t.Run(how.name+", "+in.name, func(t *testing.T) {
				onBoth(t, commtest.Sizes(t, 4)[0], func(pg *comm.ProcessGroup, isLagging bool) error { // two ranks are treated as the last two of four
					const params, rate = 5, 0.125
					m, model, opt := trainedSummedSwitches(pg, params, &how.opts, &optim.SGDOptions{LR: rate, Momentum: how.momentum})
					join := how.join
					if how.momentum != 0 {
						join.Optimizer = opt
					}
					want := expected{w: slices.Repeat([]float64{1}, params), v: make([]float64, params)}
					// The last parameter is used only if the options require it.
					use := func(rank int) []int {
						if how.opts.unused() == buckets.UnusedMissing {
							return append(how.use(rank), 4)
						}
						return how.use(rank)
					}
					input := func(rank, i int) float64 { return float64(1+rank) / 4 * float64(1+i%2) }
					for epoch, counts := range []func(rank, ranks int) int{in.of, func(int, int) int { return 2 * how.every }} {
						err := model.Join(func() error {
							for i := range counts(pg.Rank(), pg.Size()) {
								pass := func() error { return m.step(model, input(pg.Rank(), i), use(pg.Rank())...) }
								if (i+1)%how.every != 0 {
									if err := model.NoSync(pass); err != nil {
										return err
									}
									continue
								}
								if err := errors.Join(pass(), opt.Step()); err != nil {
									return err
								}
								opt.ZeroGrad()
							}
							return nil
						}, &join)
						if err != nil {
							return fmt.Errorf("epoch %d: %w", epoch, err)
						}
						most := 0
						want.last = 0
						for rank := range pg.Size() {
							most = max(most, counts(rank, pg.Size())/how.every)
						}
						for step := range most {
							want.step(pg.Size(), func(rank int) (sum float64, used []int) {
								if counts(rank, pg.Size())/how.every <= step {
									return 0, nil
								}
								for i := step * how.every; i < (step+1)*how.every; i++ {
									sum += input(rank, i)
								}
								return sum, use(rank)
							}, join.DivideByActive, rate, how.momentum)
						}
						// Inputs that are left over still run through a forward pass.
						for i := most * how.every; i < counts(want.last, pg.Size()); i++ {
							want.sum += input(want.last, i)
						}
						if err := want.check(m); err != nil {
							return fmt.Errorf("after epoch %d: %w", epoch, err)
						}
					}
					return nil
				})
			})
		}
	}
}

// If the only rank that uses a parameter has run out of inputs, the parameter is not updated,
// neither by momentum nor by weight decay. This holds for static graphs and with
// FindUnusedParameters.
func TestUnevenInputsOfTheOnlyUser(t *testing.T) {
	const rate, momentum, decay, theirs, steps = 0.1, 0.9, 0.1, 2, 5
	want, v := 1., 0.
	for range theirs {
		v = momentum*v + 4./2 + decay*want // the gradient of w1, 2·x, of one of two ranks
		want -= rate * v
	}
	for _, o := range []Options{{FindUnusedParameters: true}, {StaticGraph: true}} {
		for _, user := range []int{0, 1} {
			t.Run(fmt.Sprintf("static: %t, of rank %d", o.StaticGraph, user), func(t *testing.T) {
				onBoth(t, 2, func(pg *comm.ProcessGroup, isLagging bool) error {
					m, model, opt := trainedSwitches(pg, 2, &o, &optim.SGDOptions{LR: rate, Momentum: momentum, WeightDecay: decay})
					use, passes := []int{0}, steps
					if pg.Rank() == user {
						use, passes = []int{0, 1}, theirs
					}
					err := model.Join(func() error {
						return m.train(model, opt, passes, 2, use...)
					}, nil)
					if got := m.w[1].Item(); err != nil || math.Abs(got-want) > 1e-12 {
						return fmt.Errorf("w1 is %v, want %v, %v", got, want, err)
					}
					return nil
				})
			})
		}
	}
}

// expected computes the expected result of a training.
type expected struct {
	w, v []float64
	sum  float64
	last int // the lowest rank that made the last step
}

// step computes a step of all ranks. of returns the sum of a rank's inputs in the step and the
// parameters that it uses; nil if the rank has no inputs.
func (e *expected) step(ranks int, of func(rank int) (sum float64, used []int), byActive bool, rate, momentum float64) {
	grads, active, used := make([]float64, len(e.w)), 0, make([]bool, len(e.w))
	for rank := range ranks {
		x, mine := of(rank)
		if mine == nil {
			continue
		}
		if active == 0 {
			e.last = rank
			e.sum += x
		}
		active++
		for _, i := range mine {
			grads[i] += float64(i+1) * x
			used[i] = true
		}
	}
	if byActive {
		ranks = active
	}
	for i := range e.w {
		if used[i] {
			e.v[i] = momentum*e.v[i] + grads[i]/float64(ranks)
			e.w[i] -= rate * e.v[i]
		}
	}
}

func (e *expected) check(m summedSwitches) error {
	for i, p := range m.w {
		if got := p.Item(); math.Abs(got-e.w[i]) > 1e-12 {
			return fmt.Errorf("%s is %v, want %v", p.Name(), got, e.w[i])
		}
		if g := p.Grad(); g != nil {
			return fmt.Errorf("%s has the gradient %v, want none", p.Name(), g.Item())
		}
	}
	if got := m.sum.Var().Item(); got != e.sum {
		return fmt.Errorf("the buffer is %v, want %v", got, e.sum)
	}
	return nil
}

// alone is a hook that leaves each rank its own gradients.
type alone struct{}

func (alone) Reduce(reducer.GradBucket) reducer.Reduction { return alone{} }
func (alone) Wait(context.Context) error                  { return nil }
func (alone) Sync(context.Context) error                  { return nil }
func (alone) Partial() bool                               { return true }

// Ranks whose optimizers have made the same number of steps may have different parameters. In the end of Join they
// take over the parameters all the same.
func TestJoinedOptimizersWithEqualSteps(t *testing.T) {
	for name, c := range map[string]struct {
		opts Options
		once bool // the optimizer of JoinOptions steps in the first pass only, and another one steps in each pass
	}{
		"a second optimizer": {once: true},
		"a partial hook":     {opts: Options{Hook: alone{}}},
	} {
		t.Run(name, func(t *testing.T) {
			onBoth(t, 3, func(pg *comm.ProcessGroup, _ bool) error {
				m, model, opt := trainedSwitches(pg, 2, &c.opts, &optim.SGDOptions{LR: 0.1})
				second := must.New(optim.NewSGD(m.w[1:], &optim.SGDOptions{LR: 0.1}))
				err := model.Join(func() error {
					for i := range []int{2, 2, 1}[pg.Rank()] {
						err := m.step(model, 1+float64(pg.Rank()), 0, 1)
						if i == 0 || !c.once {
							err = errors.Join(err, opt.Step())
						} else {
							err = errors.Join(err, second.Step())
						}
						if err != nil {
							return err
						}
						opt.ZeroGrad()
					}
					return nil
				}, &JoinOptions{Optimizer: opt})
				if err != nil {
					return err
				}
				all, err := comm.AllGatherObject(t.Context(), pg, []float64{m.w[0].Item(), m.w[1].Item()})
				if err == nil && (!slices.Equal(all[1], all[0]) || !slices.Equal(all[2], all[0])) {
					err = fmt.Errorf("the parameters are %v, want equal ones", all)
				}
				return err
			})
		})
	}
}
