package ddp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// divided is an optimizer in which one rank updates each parameter and broadcasts it. Its steps
// communicate, so it takes part in Join.
type divided struct {
	pg    *comm.ProcessGroup
	ps    []*nn.Parameter
	ended []int // the arguments of Joined
}

func (o *divided) Step() error {
	for i, p := range o.ps {
		if err := p.Var().GradErr(); err != nil {
			return err
		}
		if i%o.pg.Size() == o.pg.Rank() {
			d, g := p.Var().Device(), p.Grad().Tensor()
			if err := d.Kernels().Axpby(d.Compute(), p.Var().Tensor(), device.Accum{Alpha: -1, Beta: 1}, g); err != nil {
				return err
			}
		}
		if err := o.pg.With(comm.CallOptions{Name: p.Name()}).Broadcast(p.Var().Tensor(), i%o.pg.Size()).Wait(context.Background()); err != nil {
			return err
		}
		p.Var().ZeroGrad()
	}
	return nil
}

func (o *divided) Shadow() error { return o.Step() }

func (o *divided) Joined(last int) error { o.ended = append(o.ended, last); return nil }

// An optimizer that communicates in each step takes part in Join, and uses the gradients of the
// ranks with inputs.
func TestJoinWithADividedOptimizer(t *testing.T) {
	onAll(t, func(pg *comm.ProcessGroup, isLagging bool) error {
		m := newSwitches(pg.Device(), 5)
		model, err := New(m, pg, &Options{BucketCapMB: 1e-6})
		if err != nil {
			return err
		}
		opt := &divided{pg: pg, ps: m.w}
		err = model.Join(&JoinOptions{With: []Joinable{opt}}, func() error {
			for i := range 2 + 2*pg.Rank() {
				use := []int{0, 1, 2, 3, 4}
				if i == 1 && pg.Rank() == 1 {
					use = use[1:]
				}
				err := errors.Join(m.step(model, float64(pg.Size()), use...), opt.Step())
				if errors.Is(err, device.ErrSkipped) != (i == 1) || (err != nil) != (i == 1) {
					return fmt.Errorf("step %d: %v", i, err)
				}
				for _, p := range m.w {
					p.Var().ZeroGrad()
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		sum := 0 // the sum of the inputs of all ranks, in units of the group's size, without step 1
		for rank := range pg.Size() {
			sum += 2 + 2*rank - 1
		}
		for i, p := range m.w {
			if got, want := p.Item(), 1-float64((i+1)*sum); got != want {
				return fmt.Errorf("%s is %v, want %v", p.Name(), got, want)
			}
		}
		if !slices.Equal(opt.ended, []int{pg.Size() - 1}) {
			return fmt.Errorf("it was told that %v had the last inputs", opt.ended)
		}
		return nil
	})
}

// awkward is a Joinable whose Shadow fails.
type awkward struct{}

func (awkward) Shadow() error { return errInjected }

func (awkward) Joined(int) error { return errors.New("told of the end") }

// If a Joinable fails on a rank without inputs, the training of all ranks ends.
func TestFailingJoinableEndsTraining(t *testing.T) {
	onAll(t, func(pg *comm.ProcessGroup, isLagging bool) error {
		m := newSwitches(pg.Device(), 2)
		model, err := New(m, pg, nil)
		if err != nil {
			return err
		}
		opt := must.New(optim.NewSGD(model.Parameters(), &optim.SGDOptions{LR: 1}))
		err = model.Join(&JoinOptions{With: []Joinable{awkward{}}}, func() error {
			for i := 0; pg.Rank() > 0; i++ {
				if i == 2 {
					return errors.New("nobody said a word")
				}
				if err := errors.Join(m.step(model, 1, 0, 1), opt.Step()); err != nil {
					return err
				}
				opt.ZeroGrad()
			}
			return nil
		})
		var left *reducer.LeftError
		if pg.Rank() == 0 {
			if !errors.Is(err, errInjected) {
				return fmt.Errorf("got %v", err)
			}
		} else if !errors.As(err, &left) || !slices.Equal(left.Left, []reducer.Left{{Rank: 0, Cause: errInjected.Error()}}) {
			return fmt.Errorf("got %v", err)
		}
		return nil
	})
}

// Within Join ranks may make collectives over a subgroup in which all ranks have the same number of
// inputs.
func TestJoinWithSubgroupsBetween(t *testing.T) {
	onAll(t, func(pg *comm.ProcessGroup, isLagging bool) error {
		half, err := pg.Split(context.Background(), pg.Rank()*2/pg.Size(), 0)
		if err != nil {
			return err
		}
		m := newSwitches(pg.Device(), 2)
		model, err := New(m, pg, &Options{BucketCapMB: 1e-6})
		if err != nil {
			return err
		}
		return model.Join(nil, func() error {
			for range 2 + 3*(pg.Rank()*2/pg.Size()) {
				if err := m.step(model, 1, 0, 1); err != nil {
					return err
				}
				sum := autograd.FromSlice(pg.Device(), []float64{1})
				if err := half.AllReduce(sum.Tensor(), comm.Sum).Wait(context.Background()); err != nil {
					return err
				}
				if got := sum.Item(); got != float64(half.Size()) {
					return fmt.Errorf("the half sums up to %v, want %v", got, half.Size())
				}
			}
			return nil
		})
	})
}
