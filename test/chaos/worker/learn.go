package main

import (
	"context"
	"math"
	"time"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// learner trains the model w·x·w on all ranks. The model's backward pass reads w.
type learner struct {
	w     *nn.Parameter
	model *ddp.Model
	opt   *optim.SGD
}

func newLearner(pg *comm.ProcessGroup) (*learner, error) {
	l := &learner{w: nn.NewUnplacedParameter("w", nn.Constant(1), device.Float32)}
	var err error
	if l.model, err = ddp.New(l, pg, nil); err != nil {
		return nil, err
	}
	l.opt, err = optim.NewSGD(l.model.Parameters(), &optim.SGDOptions{LR: 0.01})
	return l, err
}

// Forward returns w·x·w.
func (l *learner) Forward(x *autograd.Variable) *autograd.Variable {
	return autograd.Mul(autograd.Mul(l.w.Var(), x), l.w.Var())
}

// Parameters returns w.
func (l *learner) Parameters() []*nn.Parameter { return []*nn.Parameter{l.w} }

// learn makes a training step and checks its gradient. In the round of the fault, the victim waits
// after the forward pass and then makes the optimizer's previous step again, before the backward pass.
func (w *worker) learn(ctx context.Context, l *learner, pg *comm.ProcessGroup) error {
	share := []float32{1, -1}[w.now%2] // alternates, so that w stays near 1
	before, err := l.w.Var().TryItem(ctx)
	if err != nil {
		return err
	}
	loss := l.model.Forward(autograd.Scalar(pg.Device(), share*float32(1+w.rank)))
	if w.rank == w.victim && w.now >= w.round && l.w.Grad() != nil && !w.hasCommitted {
		w.hasCommitted = true
		time.Sleep(w.delay)
		w.say("fault", "")
		if err := l.opt.Step(); err != nil {
			return err
		}
	}
	l.opt.ZeroGrad()
	if err := backward(loss); err != nil {
		return err
	}
	if err := l.opt.Step(); err != nil {
		return err
	}
	got, err := l.w.Grad().TryItem(ctx)
	if err != nil {
		return err
	}
	if want := 2 * before * float64(share) * float64(pg.Size()+1) / 2; math.Abs(got-want) > 1e-4*math.Abs(want) {
		w.wrong("a gradient of %v, want %v: round %d", got, want, w.now)
	}
	return nil
}

// backward calls loss.Backward. It returns the error of a parameter that was written too early, with
// which Backward panics.
func backward(loss *autograd.Variable) (err error) {
	defer func() {
		thrown := recover()
		modified, ok := thrown.(*autograd.ModifiedError)
		if ok {
			err = modified
		} else if thrown != nil {
			panic(thrown)
		}
	}()
	return loss.Backward(nil)
}
