package ddp

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/gradsink"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// switches is a model with scalars w0, w1, ... It uses a given subset of them in a given order. y
// is the sum of (i+1)·wi·x, so that (i+1)·x is the gradient of wi.
type switches struct {
	w   []*nn.Parameter
	use *[]int
}

func newSwitches(dev device.Device, n int) switches {
	m := switches{use: new([]int)}
	for i := range n {
		m.w = append(m.w, nn.NewParameter(fmt.Sprint("w", i), autograd.FromSlice(dev, []float64{1})))
	}
	return m
}

func (m switches) term(i int, x *autograd.Variable) *autograd.Variable {
	factor := autograd.FromSlice(x.Device(), []float64{float64(i + 1)})
	return autograd.Mul(m.w[i].Var(), autograd.Mul(factor, x))
}

func (m switches) Forward(x *autograd.Variable) *autograd.Variable {
	y := m.term((*m.use)[0], x)
	for _, i := range (*m.use)[1:] {
		y = autograd.Add(y, m.term(i, x))
	}
	return y
}

func (m switches) Parameters() []*nn.Parameter { return m.w }

// step makes a forward and a backward pass with input x, which uses the given parameters.
func (m switches) step(model *Model, x float64, use ...int) error {
	*m.use = use
	return model.Forward(autograd.FromSlice(model.pg.Device(), []float64{x})).Backward(nil)
}

// trainedSwitches returns n switches in a model, and their optimizer.
func trainedSwitches(pg *comm.ProcessGroup, n int, opts *Options, sgd *optim.SGDOptions) (switches, *Model, *optim.SGD) {
	m := newSwitches(pg.Device(), n)
	model := must.New(New(m, pg, opts))
	return m, model, must.New(optim.NewSGD(model.Parameters(), sgd))
}

// train makes n steps, each with the same pass.
func (m switches) train(model *Model, opt *optim.SGD, n int, x float64, use ...int) error {
	for range n {
		if err := errors.Join(m.step(model, x, use...), opt.Step()); err != nil {
			return err
		}
		opt.ZeroGrad()
	}
	return nil
}

// none stands for a missing gradient.
const none = -1

// has returns an error unless the gradients are the given ones.
func (m switches) has(want ...float64) error {
	for i, p := range m.w {
		got := float64(none)
		if g := p.Grad(); g != nil {
			got = g.Item()
		}
		if got != want[i] {
			return fmt.Errorf("the gradient of %s is %v, want %v (%v: none)", p.Name(), got, want[i], none)
		}
	}
	return nil
}

func (m switches) zeroGrad() {
	for _, p := range m.w {
		p.Var().ZeroGrad()
	}
}

// onBuckets runs f as onAll does, with one bucket and with a bucket for each parameter.
func onBuckets(t *testing.T, o Options, f func(pg *comm.ProcessGroup, isLagging bool, opts *Options) error) {
	each := o
	each.BucketCapMB = 1e-6
	for _, c := range []struct {
		name string
		opts *Options
	}{{"one bucket", &o}, {"a bucket each", &each}} {
		t.Run(c.name, func(t *testing.T) {
			onAll(t, func(pg *comm.ProcessGroup, isLagging bool) error { return f(pg, isLagging, c.opts) })
		})
	}
}

// share returns this rank's number, 1+2·rank, and the mean of these numbers over the ranks.
func share(pg *comm.ProcessGroup) (mine, mean float64) {
	return float64(1 + 2*pg.Rank()), float64(pg.Size())
}

// A parameter that no rank uses has no gradient, or keeps an existing one. A parameter that some
// ranks use has the average on all ranks.
func TestForwardBackwardUnusedParameters(t *testing.T) {
	onBuckets(t, Options{FindUnusedParameters: true}, func(pg *comm.ProcessGroup, isLagging bool, opts *Options) error {
		m, model, _ := trainedSwitches(pg, 4, opts, nil)
		odd := pg.Rank() % 2
		x := float64(2 + 2*odd) // 2 and 4
		mine := [][]int{{0, 1}, {1, 2}}[odd]
		if err := m.step(model, x, mine...); err != nil {
			return err
		}
		if err := m.has(1, 2*3, 3*2, none); err != nil {
			return err
		}
		if got, want := model.Stats().Unused, [][]string{{"w2", "w3"}, {"w0", "w3"}}[odd]; !slices.Equal(got, want) {
			return fmt.Errorf("unused are %v, want %v", got, want)
		}
		// The other gradients do not change, and the last parameter gets one.
		if err := m.step(model, x, 3); err != nil {
			return err
		}
		if err := m.has(1, 6, 6, 4*3); err != nil {
			return err
		}
		// Gradients of accumulating passes count, even if only one rank has them.
		m.w[0].Var().ZeroGrad()
		if pg.Rank() == 1 {
			if err := model.NoSync(func() error { return m.step(model, 6, 0) }); err != nil {
				return err
			}
		}
		if err := m.step(model, x, 3); err != nil {
			return err
		}
		return m.has(6/float64(pg.Size()), 6, 6, 24)
	})
}

// A gradient that is zeroed before the program reads it stays zeroed.
func TestZeroGradOfUnusedParameter(t *testing.T) {
	onAll(t, func(pg *comm.ProcessGroup, isLagging bool) error {
		m, model, _ := trainedSwitches(pg, 2, &Options{FindUnusedParameters: true}, nil)
		for range 2 {
			if err := m.step(model, 1, [][]int{{0, 1}, {0}}[pg.Rank()%2]...); err != nil {
				return err
			}
			m.w[1].Var().ZeroGrad()
			if err := m.has(1, none); err != nil {
				return err
			}
			m.w[0].Var().ZeroGrad()
		}
		return nil
	})
}

// If the program asks only whether a gradient exists, the next pass returns the error of the pass
// before.
func TestErrorAfterQueryOfUnusedGradient(t *testing.T) {
	onRanks(t, true, 2, func(pg *comm.ProcessGroup) error {
		m, model, _ := trainedSwitches(pg, 2, &Options{FindUnusedParameters: true}, nil)
		*m.use = []int{0}
		y := failIf(pg.Rank() == 1, model.Forward(autograd.FromSlice(pg.Device(), []float64{1})))
		var missing *reducer.MissingGradientError
		if err := y.Backward(nil); errors.As(err, &missing) != (pg.Rank() == 1) {
			return fmt.Errorf("got %v", err)
		}
		if g := m.w[1].Grad(); g != nil {
			return fmt.Errorf("the gradient of w1 is %v, want none", g.Item())
		}
		m.w[0].Var().ZeroGrad()
		err := m.step(model, 1, 0)
		if pg.Rank() == 1 && err == nil {
			err = m.w[0].Var().GradErr()
		}
		if !errors.As(err, &missing) {
			return fmt.Errorf("the next pass: %v", err)
		}
		return errors.Join(m.step(model, 1, 0), m.has(1, none))
	})
}

// Every rank uses other parameters in every pass. The gradients, and the optimizer's results, are
// those of one process with all batches.
func TestControlFlowDifferentAcrossRanks(t *testing.T) {
	onBuckets(t, Options{FindUnusedParameters: true, CheckReplicas: 2}, func(pg *comm.ProcessGroup, _ bool, opts *Options) error {
		return controlFlow(pg, opts)
	})
}

func controlFlow(pg *comm.ProcessGroup, opts *Options) error {
	const params, steps, rate = 5, 12, 0.25
	m, model, opt := trainedSwitches(pg, params, opts, &optim.SGDOptions{LR: rate})
	draw := rand.New(rand.NewPCG(1, 2)) // the same sequence on all ranks
	want, grad := slices.Repeat([]float64{1}, params), slices.Repeat([]float64{none}, params)
	for step := range steps {
		var mine []int
		var sum [params]float64 // the sum of all ranks' gradients in the step
		for rank := range pg.Size() {
			use := draw.Perm(params)[:1+draw.IntN(2)]
			if rank == pg.Rank() {
				mine = use
			}
			for _, i := range use {
				sum[i] += float64((i + 1) * (rank + 1))
			}
		}
		for i := range params {
			if sum[i] != 0 {
				grad[i] = max(grad[i], 0) + sum[i]/float64(pg.Size())
			}
			if grad[i] != none {
				want[i] -= rate * grad[i]
			}
		}
		err := errors.Join(m.step(model, float64(pg.Rank()+1), mine...), opt.Step(), m.has(grad...))
		if err != nil {
			return fmt.Errorf("step %d, using %v: %w", step, mine, err)
		}
		for i, p := range m.w {
			if got := p.Item(); got != want[i] {
				return fmt.Errorf("step %d: %s is %v, want %v", step, p.Name(), got, want[i])
			}
		}
		if step%3 != 1 { // in other steps the next pass adds to the gradients
			opt.ZeroGrad()
			grad = slices.Repeat([]float64{none}, params)
		}
	}
	return nil
}

// A layer of the model that the program calls outside Forward is found too, because the search
// starts where the backward pass does.
func TestFindUnusedParametersOutsideForward(t *testing.T) {
	for _, find := range []bool{false, true} {
		onAll(t, func(pg *comm.ProcessGroup, isLagging bool) error {
			m, model, _ := trainedSwitches(pg, 3, &Options{FindUnusedParameters: find}, nil)
			*m.use = []int{0, 1}
			mine, mean := share(pg)
			x := autograd.FromSlice(pg.Device(), []float64{mine})
			y := autograd.Add(model.Forward(x), m.term(2, x))
			if err := y.Backward(nil); err != nil {
				return err
			}
			return m.has(mean, 2*mean, 3*mean)
		})
	}
}

// outputs computes three results; its Forward returns one of them.
type outputs struct {
	switches
	named map[string]*autograd.Variable
	list  *[]*autograd.Variable
}

func (m outputs) Forward(x *autograd.Variable) *autograd.Variable {
	m.named["one"] = autograd.Add(m.term(0, x), m.term(3, x))
	*m.list = []*autograd.Variable{autograd.Add(m.term(1, x), m.term(3, x))}
	return autograd.Add(m.term(2, x), m.term(3, x))
}

func newOutputs(pg *comm.ProcessGroup, opts *Options) (outputs, *Model) {
	m := outputs{newSwitches(pg.Device(), 4), map[string]*autograd.Variable{}, new([]*autograd.Variable)}
	return m, must.New(New(m, pg, opts))
}

// A pass through any output of the model, alone or with others, averages the gradients.
func TestArbitraryForwardReturnValue(t *testing.T) {
	onAll(t, func(pg *comm.ProcessGroup, isLagging bool) error {
		m, model := newOutputs(pg, &Options{FindUnusedParameters: true})
		mine, mean := share(pg)
		x := autograd.FromSlice(pg.Device(), []float64{mine})
		y := model.Forward(x)
		err := autograd.Add(y, autograd.Add(model.Output(m.named["one"]), model.Output((*m.list)[0]))).Backward(nil)
		if err = errors.Join(err, m.has(mean, 2*mean, 3*mean, 3*4*mean)); err != nil {
			return err
		}
		m.zeroGrad()
		model.Forward(x)
		err = errors.Join(model.Output(m.named["one"]).Backward(nil), m.has(mean, none, none, 4*mean))
		if err != nil {
			return err
		}
		m.zeroGrad()
		// A pass through an output that was not registered by Output is not averaged.
		model.Forward(x)
		err = (*m.list)[0].Backward(nil)
		return errors.Join(err, m.has(none, 2*mine, none, 4*mine))
	})
}

// Several outputs of one forward pass have a backward pass each. Each pass averages the gradients
// that it reaches, and the sum is that of one pass through all outputs. Passes within NoSync do not
// reduce.
func TestMultipleOutputsMultipleBackward(t *testing.T) {
	for _, accumulate := range []bool{false, true} {
		t.Run(fmt.Sprint("accumulating: ", accumulate), func(t *testing.T) {
			onBuckets(t, Options{FindUnusedParameters: true}, func(pg *comm.ProcessGroup, _ bool, opts *Options) error {
				m, model := newOutputs(pg, opts)
				mine, mean := share(pg)
				for range 3 {
					y := model.Forward(autograd.FromSlice(pg.Device(), []float64{mine}))
					one, two := model.Output(m.named["one"]), model.Output((*m.list)[0])
					first := func() error { return errors.Join(one.Backward(nil), two.Backward(nil)) }
					var err error
					if accumulate {
						err = model.NoSync(first)
					} else {
						err = errors.Join(first(), m.has(mean, 2*mean, none, 2*4*mean))
					}
					if err := errors.Join(err, y.Backward(nil), m.has(mean, 2*mean, 3*mean, 3*4*mean)); err != nil {
						return err
					}
					m.zeroGrad()
				}
				return nil
			})
		})
	}
}

// Without FindUnusedParameters, a pass through one of two outputs lacks the gradients of the other.
// Every rank gets the error in that pass, with a hint what helps.
func TestOutputUnusedInLoss(t *testing.T) {
	onAll(t, func(pg *comm.ProcessGroup, isLagging bool) error {
		m, model := newOutputs(pg, nil)
		err := model.Forward(autograd.FromSlice(pg.Device(), []float64{1})).Backward(nil)
		var missing *reducer.MissingGradientError
		if !errors.As(err, &missing) || len(missing.Missing) != pg.Size() || !strings.Contains(err.Error(), `["w1" "w0"] on ranks 0`) || !strings.Contains(err.Error(), "FindUnusedParameters") {
			return fmt.Errorf("got %v", err)
		}
		return m.has(none, none, none, none)
	})
}

// A static graph leaves out the parameters that its first pass did not use, which may differ
// between ranks. No rank waits for the others. If a later pass uses other parameters, every rank
// gets an error in that pass.
func TestStaticGraph(t *testing.T) {
	onBuckets(t, Options{StaticGraph: true}, func(pg *comm.ProcessGroup, isLagging bool, opts *Options) error {
		m, model, opt := trainedSwitches(pg, 4, opts, &optim.SGDOptions{LR: 0.5})
		mine := [][]int{{0, 1}, {2, 1}}[pg.Rank()%2]
		// A failed pass does not determine the graph.
		*m.use = []int{3}
		y := failIf(pg.Rank() == 0, model.Forward(autograd.FromSlice(pg.Device(), []float64{1})))
		if err := errors.Join(y.Backward(nil), opt.Step()); !errors.Is(err, device.ErrSkipped) {
			return fmt.Errorf("a pass that fails: %v", err)
		}
		opt.ZeroGrad()
		for pass := range 3 {
			if err := m.step(model, 2, mine...); err != nil {
				return fmt.Errorf("pass %d: %w", pass, err)
			}
			theirs := m.w[2*(1-pg.Rank()%2)].Grad() // a parameter that this rank did not use
			pending := gradsink.Of(m.w[1].Var()).Pending()
			if cpu := pg.Device().String() == "cpu"; theirs == nil || cpu && pending != (isLagging && pass > 0) { // a GPU may be done by now
				return fmt.Errorf("pass %d: gradient %v, known: %v", pass, theirs, !pending)
			}
			if err := errors.Join(opt.Step(), m.has(1, 4, 3, none)); err != nil {
				return fmt.Errorf("pass %d: %w", pass, err)
			}
			opt.ZeroGrad()
		}
		before := m.w[1].Item()
		if pg.Rank() == 1 {
			mine = []int{3, 2}
		}
		err := errors.Join(m.step(model, 2, mine...), opt.Step())
		var changed *reducer.GraphChangedError
		if !errors.As(err, &changed) || !errors.Is(err, device.ErrSkipped) || m.w[1].Item() != before {
			return fmt.Errorf("a graph that changed: %v", err)
		}
		if want := `rank 1 now uses parameter "w3", does not use parameter "w1"`; len(changed.Changed) != 1 || !strings.Contains(err.Error(), want) {
			return fmt.Errorf("%q lacks %q", err, want)
		}
		opt.ZeroGrad()
		mine = [][]int{{0, 1}, {2, 1}}[pg.Rank()%2]
		return errors.Join(m.step(model, 2, mine...), m.has(1, 4, 3, none))
	})
}

// A static graph may have several outputs. Its passes go through the same ones each time.
func TestStaticGraphOfSeveralOutputs(t *testing.T) {
	onBuckets(t, Options{StaticGraph: true}, func(pg *comm.ProcessGroup, _ bool, opts *Options) error {
		m, model := newOutputs(pg, opts)
		mine, mean := share(pg)
		for range 3 {
			y := model.Forward(autograd.FromSlice(pg.Device(), []float64{mine}))
			err := autograd.Add(y, model.Output((*m.list)[0])).Backward(nil)
			if err := errors.Join(err, m.has(none, 2*mean, 3*mean, 2*4*mean)); err != nil {
				return err
			}
			m.zeroGrad()
		}
		return nil
	})
}

// twice uses one parameter in two places. It leaves out one place on request. It never uses its
// second parameter.
type twice struct {
	a, again, never *nn.Parameter
	both            *bool
}

func (m twice) Parameters() []*nn.Parameter { return []*nn.Parameter{m.a, m.never, m.again} }
func (m twice) Forward(x *autograd.Variable) *autograd.Variable {
	y := autograd.Mul(m.a.Var(), x)
	if *m.both {
		y = autograd.Add(y, autograd.Mul(m.again.Var(), x))
	}
	return y
}

// A shared parameter has one gradient, from every place where any rank used it, including
// accumulating passes. A parameter that no rank used has none.
func TestSharedGradientAccumulatesBesideUnusedParameters(t *testing.T) {
	for _, o := range []Options{{FindUnusedParameters: true}, {StaticGraph: true}} {
		t.Run(fmt.Sprint("static: ", o.StaticGraph), func(t *testing.T) {
			onBuckets(t, o, func(pg *comm.ProcessGroup, _ bool, opts *Options) error {
				v := autograd.FromSlice(pg.Device(), []float64{1})
				both := pg.Rank()%2 == 0
				m := twice{nn.NewParameter("a", v), nn.NewParameter("again", v), nn.NewParameter("never", autograd.FromSlice(pg.Device(), []float64{1})), &both}
				model := must.New(New(m, pg, opts))
				pass := func() error { return model.Forward(autograd.FromSlice(pg.Device(), []float64{2})).Backward(nil) }
				for step := range 3 {
					if err := errors.Join(model.NoSync(pass), pass()); err != nil {
						return err
					}
					// Two passes: half of the ranks have 4, the others 2.
					if got, never := v.Grad(), m.never.Grad(); got == nil || got.Item() != 6 || never != nil {
						return fmt.Errorf("step %d: gradients %v and %v, want 6 and none", step, got, never)
					}
					v.ZeroGrad()
				}
				return nil
			})
		})
	}
}

// If an accumulating pass uses a parameter that the static graph does not, only this rank has a
// gradient for it. The pass that reduces reports it.
func TestStaticGraphThatAccumulatesOthers(t *testing.T) {
	onAll(t, func(pg *comm.ProcessGroup, isLagging bool) error {
		m, model, _ := trainedSwitches(pg, 2, &Options{StaticGraph: true}, nil)
		if err := errors.Join(m.step(model, 1, 0), m.w[0].Var().GradErr()); err != nil {
			return err
		}
		if pg.Rank() == 1 {
			if err := model.NoSync(func() error { return m.step(model, 1, 1) }); err != nil {
				return err
			}
		}
		err := errors.Join(m.step(model, 1, 0), m.w[0].Var().GradErr())
		if changed := (*reducer.GraphChangedError)(nil); !errors.As(err, &changed) || !strings.Contains(err.Error(), `rank 1 now uses parameter "w1"`) {
			return fmt.Errorf("got %v", err)
		}
		return errors.Join(m.step(model, 1, 0), m.has(1, none))
	})
}
