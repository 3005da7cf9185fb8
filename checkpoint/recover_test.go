package checkpoint

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/internal/commtest"
	"github.com/goddp/goddp/internal/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// survivor is the state that a rank keeps from one group to the next.
type survivor struct {
	net nn.Module
	opt *optim.AdamW
}

// train makes the steps from to to and saves every second one.
func (s survivor) train(ctx context.Context, pg *comm.ProcessGroup, m *Manager, from, to int) error {
	model, err := ddp.New(s.net, pg, nil)
	if err != nil {
		return err
	}
	for n := from; n < to; n++ {
		x := autograd.FromSlice(pg.Device(), []float32{float32(n), float32(pg.Rank()), 1}, 1, 3)
		if err := nn.MSELoss(model.Forward(x), autograd.Zeros(pg.Device(), device.Float32, 1, 2)).Backward(); err != nil {
			return err
		}
		if err := s.opt.Step(); err != nil {
			return err
		}
		s.opt.ZeroGrad()
		if (n+1)%2 == 0 {
			if err := m.Save(ctx, n+1, s.state()); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s survivor) state() State { return State{Model: s.net, Optimizers: []optim.Optimizer{s.opt}} }

func (s survivor) bits() (all []byte, err error) {
	kept, err := s.opt.State()
	for _, p := range s.net.Parameters() {
		all = append(all, p.Var().Tensor().Buf.Host()...)
	}
	for _, b := range kept {
		all = append(all, b.Var().Tensor().Buf.Host()...)
	}
	return all, err
}

// If a failure leaves no rank consistent, ddp.Recover says so on all ranks, and the new group
// resumes from the latest checkpoint. If a rank is consistent, Recover suffices, and the new group
// saves to the same folder.
func TestRecoverFromACheckpoint(t *testing.T) {
	const ranks, steps, failing = 2, 9, 5
	for _, inconsistent := range []int{0, 1, ranks} {
		t.Run(fmt.Sprint(inconsistent, " ranks are inconsistent"), func(t *testing.T) {
			ctx, dir := t.Context(), t.TempDir()
			var devices []device.Device
			var failed, unbroken []survivor
			for range ranks {
				dev := cpu.New(&cpu.Options{Threads: 1})
				t.Cleanup(func() { dev.Close() })
				devices = append(devices, dev)
				for _, all := range []*[]survivor{&failed, &unbroken} {
					net := nn.Sequential(nn.Linear(3, 5), nn.GELU(), nn.Linear(5, 2))
					*all = append(*all, survivor{net, must.New(optim.NewAdamW(net.Parameters(), &optim.AdamWOptions{LR: 0.1}))})
				}
			}
			inGroup := func(f func(pg *comm.ProcessGroup, m *Manager) error) {
				commtest.OnDevices(t, devices, &comm.Options{ErrorMode: comm.BlockingWait}, func(pg *comm.ProcessGroup) error {
					m, err := Open(pg, dir, &Options{Keep: 2, Async: true})
					if err != nil {
						return err
					}
					return errors.Join(f(pg, m), m.Close())
				})
			}
			inGroup(func(pg *comm.ProcessGroup, m *Manager) error {
				s := failed[pg.Rank()]
				err := s.train(ctx, pg, m, 0, failing)
				if pg.Rank() < inconsistent { // as if an update had failed between two parameters
					s.opt.BeginLoad()
					device.Elements[float32](s.net.Parameters()[0].Var().Tensor())[0] = 100
				}
				return err
			})
			inGroup(func(pg *comm.ProcessGroup, m *Manager) error {
				s := failed[pg.Rank()]
				step, err := ddp.Recover(s.net, pg, s.opt)
				var lost *ddp.LostStateError
				if errors.As(err, &lost) != (inconsistent == ranks) {
					return fmt.Errorf("%v from Recover with %d inconsistent ranks", err, inconsistent)
				}
				want := failing
				if lost != nil {
					want = failing - 1
					step, err = m.Resume(ctx, s.state())
				}
				if err != nil || step != want {
					return fmt.Errorf("step %d, %v, want %d", step, err, want)
				}
				return s.train(ctx, pg, m, step, steps)
			})
			dir = t.TempDir()
			inGroup(func(pg *comm.ProcessGroup, m *Manager) error {
				s := unbroken[pg.Rank()]
				if err := s.train(ctx, pg, m, 0, steps); err != nil {
					return err
				}
				want, err := s.bits()
				got, err2 := failed[pg.Rank()].bits()
				if !bytes.Equal(got, want) {
					err = errors.Join(err, errors.New("the parameters or the optimizer's state differ from those of a run without a failure"))
				}
				return errors.Join(err, err2)
			})
		})
	}
}
