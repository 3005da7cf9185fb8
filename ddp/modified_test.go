package ddp

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// modified returns the [*autograd.ModifiedError] with which f panics, or nil if f returns.
func modified(f func() error) (found *autograd.ModifiedError, err error) {
	defer func() {
		thrown := recover()
		e, ok := thrown.(*autograd.ModifiedError)
		if found = e; thrown != nil && !ok {
			panic(thrown)
		}
	}()
	return nil, f()
}

// If a rank steps a parameter between a forward pass and its backward pass, Backward panics before
// any of its gradients is sent. The other ranks get the group's error at once. It names the rank,
// the operation, the parameter and both versions.
func TestStepBeforeBackwardPanics(t *testing.T) {
	onBuckets(t, Options{}, func(pg *comm.ProcessGroup, _ bool, opts *Options) error {
		start := time.Now()
		c := newChain(pg.Device())
		model := must.New(New(c, pg, opts))
		opt := must.New(optim.NewSGD(model.Parameters(), &optim.SGDOptions{LR: 0.1}))
		var err error
		for step := 0; err == nil; step++ {
			loss := model.Forward(autograd.FromSlice(pg.Device(), []float64{1}))
			if step == 1 && pg.Rank() == 1 {
				c.w[1].Var().BumpVersion() // what an optimizer's step does
				found, err := modified(func() error { return loss.Backward(nil) })
				if err != nil || found == nil || found.Op != "Mul" || !strings.Contains(found.Variable, `"w1"`) || found.Now != found.Saved+1 {
					return fmt.Errorf("got %v, %v", found, err)
				}
				continue // the next pass returns the group's error
			}
			if err = loss.Backward(nil); err == nil {
				err = opt.Step()
			}
			if err == nil && step > 1 {
				return errors.New("the rank's pass counted")
			}
			opt.ZeroGrad()
		}
		for _, part := range []string{"panic in the backward pass: autograd: the backward of Mul", `"w1"`, "at version ", "has made it version "} {
			if !isAbortedBy(err, pg, 1) || !strings.Contains(err.Error(), part) {
				return fmt.Errorf("rank %d: got %v, without %q", pg.Rank(), err, part)
			}
		}
		if waited := time.Since(start); waited > pg.Timeout()/2 {
			return fmt.Errorf("rank %d heard of it after %v", pg.Rank(), waited)
		}
		return nil
	})
}

// normalized is w·x times the running mean of its inputs, which it updates.
type normalized struct {
	w    *nn.Parameter
	mean *nn.Buffer
}

func newNormalized(dev device.Device) normalized {
	return normalized{nn.NewParameter("w", autograd.FromSlice(dev, []float64{1})), nn.NewBuffer("mean", autograd.FromSlice(dev, []float64{1}))}
}

func (m normalized) Forward(x *autograd.Variable) *autograd.Variable {
	y := autograd.Mul(m.w.Var(), x)
	y = autograd.Mul(y, autograd.MulScalar(m.mean.Var(), 1))
	autograd.NoGrad(x.Device(), func() {
		dev, mean := x.Device(), m.mean.Var()
		next := autograd.Add(autograd.MulScalar(mean, 0.5), autograd.MulScalar(y, 0.5))
		if err := dev.Copy(dev.Compute(), mean.Tensor().Buf, next.Tensor().Buf); err != nil {
			panic(err)
		}
		mean.BumpVersion()
	})
	return y
}

func (m normalized) Parameters() []*nn.Parameter { return []*nn.Parameter{m.w} }
func (m normalized) Buffers() []*nn.Buffer       { return []*nn.Buffer{m.mean} }

// In a group of one no buffers are sent, so a further pass may go through a graph that reads one.
func TestTwoPassesThroughAGraphThatReadsABuffer(t *testing.T) {
	onRanks(t, false, 1, func(pg *comm.ProcessGroup) error {
		dev := pg.Device()
		w, mask := nn.NewParameter("w", autograd.FromSlice(dev, []float64{3})), nn.NewBuffer("mask", autograd.FromSlice(dev, []float64{2}))
		model := must.New(New(masked{normalized{w, mask}}, pg, nil))
		y := model.Forward(autograd.FromSlice(dev, []float64{5}))
		if err := errors.Join(y.Backward(&autograd.BackwardOptions{RetainGraph: true}), autograd.MulScalar(y, 2).Backward(nil)); err != nil {
			return err
		}
		if g := w.Grad().Item(); g != 3*2*5 {
			return fmt.Errorf("the gradient is %v, want 30", g)
		}
		return nil
	})
}

// masked is w·x times a buffer.
type masked struct{ normalized }

func (m masked) Forward(x *autograd.Variable) *autograd.Variable {
	return autograd.Mul(autograd.Mul(m.w.Var(), x), m.mean.Var())
}

// Setting parameters or buffers to another rank's values counts as an in-place write on all ranks.
// Training with running statistics, accumulation, shadow passes and graphs of several passes does
// not make a graph invalid.
func TestVersionsAcrossRanks(t *testing.T) {
	for _, c := range []struct { // all processes run the cases in the same order
		name string
		opts Options
	}{
		{"plain", Options{}}, {"unused", Options{FindUnusedParameters: true}}, {"static", Options{StaticGraph: true}},
		{"local buffers", Options{LocalBuffers: true}},
	} {
		o := c.opts
		t.Run(c.name, func(t *testing.T) {
			onBoth(t, 2, func(pg *comm.ProcessGroup, _ bool) error {
				m := newNormalized(pg.Device())
				counted := func(what string, v *autograd.Variable, want bool, f func() error) error {
					before := v.Version()
					if err := f(); err != nil {
						return fmt.Errorf("%s: %w", what, err)
					}
					if now := v.Version(); now > before != want {
						return fmt.Errorf("%s: version %d before and %d after", what, before, now)
					}
					return nil
				}
				w, mean := m.w.Var(), m.mean.Var()
				var model *Model
				wrap := func() (err error) {
					model, err = New(m, pg, &o)
					return err
				}
				if err := errors.Join(counted("New, the parameter", w, true, wrap), counted("New, the buffer", mean, true, wrap)); err != nil {
					return err
				}
				opt := must.New(optim.NewSGD(model.Parameters(), &optim.SGDOptions{LR: 0.1}))
				forward := func() *autograd.Variable { return model.Forward(autograd.FromSlice(pg.Device(), []float64{1})) }
				loss := forward()
				err := counted("Backward, the parameter", w, false, func() error { return loss.Backward(nil) })
				loss = forward()
				err = errors.Join(err, counted("Backward, the buffer", mean, !o.LocalBuffers, func() error { return loss.Backward(nil) }))
				opt.ZeroGrad()
				return errors.Join(err, counted("Join", w, true, func() error {
					return model.Join(func() error {
						for range 2 + pg.Rank() {
							a, b := forward(), forward()
							if err := errors.Join(model.NoSync(func() error { return a.Backward(nil) }), b.Backward(nil), opt.Step()); err != nil {
								return err
							}
							opt.ZeroGrad()
						}
						return nil
					}, &JoinOptions{Optimizer: opt})
				}))
			})
		})
	}
}
