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

// learner is a model that all ranks train: w·x·w, whose backward reads w.
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

// Forward is w·x·w.
func (l *learner) Forward(x *autograd.Variable) *autograd.Variable {
	return autograd.Mul(autograd.Mul(l.w.Var(), x), l.w.Var())
}

// Parameters is w.
func (l *learner) Parameters() []*nn.Parameter { return []*nn.Parameter{l.w} }

// learn makes a training step, and checks its gradient. The victim makes the step of the
// round before a second time, between the forward pass and the backward pass, which is after a
// delay.
func (w *worker) learn(ctx context.Context, l *learner, pg *comm.ProcessGroup) error {
	share := []float32{1, -1}[w.now%2] // so that w stays near 1
	before, err := l.w.Var().TryItem(ctx)
	if err != nil {
		return err
	}
	loss := l.model.Forward(autograd.Scalar(pg.Device(), share*float32(1+w.rank)))
	if w.rank == w.victim && w.now >= w.round && l.w.Grad() != nil && !w.committed {
		w.committed = true
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
		w.wrong("round %d: a gradient of %v, want %v", w.now, got, want)
	}
	return nil
}

// backward is loss.Backward, where a program that stepped too early goes on.
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
	return loss.Backward()
}
