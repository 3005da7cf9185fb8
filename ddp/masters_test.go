package ddp

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// halve gives the survivor a model with 16-bit parameters and master weights.
func (s *survivor) halve() {
	s.restart()
	o := nn.LinearOptions{DType: device.BFloat16, Compute: device.Float32}
	s.net = noted{nn.Sequential(nn.Linear(8, 8, o), nn.ReLU(), nn.Linear(8, 8, o)), s.note}
	s.opt = must.New(optim.NewSGD(s.net.Parameters(), &optim.SGDOptions{LR: 0.001, Momentum: 0.9, MasterWeights: true}))
}

// trainHalf makes the steps from to up to, but not including, to.
func (s *survivor) trainHalf(pg *comm.ProcessGroup, from, to int) error {
	model, err := New(s.net, pg, nil)
	if err != nil {
		return err
	}
	for step := from; step < to; step++ {
		x := samples(s, uint64(2*step), 2*pg.Size(), 8, pg.Rank(), pg.Size())
		y := samples(s, uint64(2*step+1), 2*pg.Size(), 8, pg.Rank(), pg.Size())
		if err := nn.MSELoss(model.Forward(x), autograd.Cast(y, device.Float32)).Backward(); err != nil {
			return err
		}
		if err := s.opt.Step(); err != nil {
			return err
		}
		s.opt.ZeroGrad()
	}
	return nil
}

// Recover restores master weights too. Ranks that lost them, or are inconsistent, reach the same
// masters as without the failure; the rounded parameters alone would not suffice.
func TestRecoverMasters(t *testing.T) {
	const ranks, steps, failing = 3, 12, 5
	halved := func() []*survivor {
		all := survivors(t, ranks, false)
		for _, s := range all {
			s.halve()
		}
		return all
	}
	plain := halved()
	onSurvivors(t, plain, comm.Options{}, func(pg *comm.ProcessGroup, s *survivor) error { return s.trainHalf(pg, 0, steps) })
	want, err := plain[0].state()
	if err != nil {
		t.Fatal(err)
	}

	all := halved()
	onSurvivors(t, all, comm.Options{}, func(pg *comm.ProcessGroup, s *survivor) error {
		if err := s.trainHalf(pg, 0, failing); err != nil {
			return err
		}
		switch pg.Rank() {
		case 0: // a new process
			s.halve()
		case 1: // inconsistent
			s.updates = 1
			if err := s.trainAlone(); !errors.As(err, new(*optim.InconsistentError)) {
				return fmt.Errorf("got %v, want a inconsistent step", err)
			}
			s.updates = -1
		}
		return nil
	})
	onSurvivors(t, all, comm.Options{}, func(pg *comm.ProcessGroup, s *survivor) error {
		step, err := Recover(s.net, pg, s.opt)
		if err != nil || step != failing {
			return fmt.Errorf("recovered step %d, %v; want %d", step, err, failing)
		}
		return s.trainHalf(pg, step, steps)
	})
	for r, s := range all {
		if got, err := s.state(); err != nil || !bytes.Equal(got, want) {
			t.Errorf("rank %d did not come where it comes without a failure, masters and all (%v)", r, err)
		}
	}
}

// trainAlone makes a step that the other ranks do not make.
func (s *survivor) trainAlone() error {
	for _, p := range s.net.Parameters() {
		p.Var().SetGradSink(nil)
	}
	if err := nn.MSELoss(s.net.Forward(samples(s, 0, 2, 8, 0, 1)), autograd.Zeros(s, device.Float32, 2, 8)).Backward(); err != nil {
		return err
	}
	return s.opt.Step()
}
