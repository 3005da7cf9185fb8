package zero

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// New places a model parameter by parameter: besides what remains, no rank ever has more than the unrounded values of one.
// Parameters and masters begin as those of a model that was placed before.
func TestModelIsPlacedByParts(t *testing.T) {
	const wide, layers = 128, 12
	model := func() nn.Module {
		var all []nn.Module
		for range layers {
			all = append(all, nn.Linear(wide, wide, &nn.LinearOptions{Compute: device.Float32}))
		}
		return nn.Sequential(all...)
	}
	for _, stage := range []int{1, 3} {
		t.Run(fmt.Sprint("stage ", stage), func(t *testing.T) {
			onBoth(t, func(pg *comm.ProcessGroup) error {
				dev, opts := pg.Device(), deep
				opts.BucketCapMB, opts.Seed = 0.03, 1
				net := model()
				if err := nn.Cast(net, device.BFloat16, &nn.CastOptions{Masters: true}); err != nil {
					return err
				}
				w := must.New(staged(net, pg, adamW, opts, stage))
				if m, most := dev.Memory(), int64(5*wide*wide); m.Peak > m.InUse+most {
					return fmt.Errorf("New took %d bytes that it does not keep, want at most %d", m.Peak-m.InUse, most)
				}
				placed := model()
				err := nn.Place(placed, dev, opts.Seed+uint64(pg.Rank()))
				if err = errors.Join(err, nn.Cast(placed, device.BFloat16, &nn.CastOptions{Masters: true})); err != nil {
					return err
				}
				want := must.New(staged(placed, pg, adamW, opts, stage))
				if !bytes.Equal(must.New(w.wholeBits(net)), must.New(want.wholeBits(placed))) {
					return errors.New("the parameters differ from those of a model that was placed before")
				}
				return sameState(pg, w, want)
			}, 1, 4)
		})
	}
}

// If the initial values of a parameter are missing on one rank, New fails on all ranks.
func TestModelThatCannotBePlaced(t *testing.T) {
	onBoth(t, func(pg *comm.ProcessGroup) error {
		net := newChain(double, 0)
		if pg.Rank() == 1 {
			net.Parameters()[3].SetInit(func(device.Device, device.Tensor, uint64, uint64) error { return errInjected })
		}
		if _, err := staged(net, pg, sgd, deep, 3); err == nil || !strings.Contains(err.Error(), errInjected.Error()) {
			return fmt.Errorf("New returned %w", err)
		}
		return nil
	}, 2)
}

// In stage 3 the frozen parameters are divided too. Training, an evaluation and Regroup do what they do in stage 1.
func TestFrozenParametersAreDivided(t *testing.T) {
	onBoth(t, func(pg *comm.ProcessGroup) error {
		var want []float64
		var parameters []byte
		for _, stage := range []int{1, 3} {
			net := newChain(double, 0)
			for i, b := range net.blocks {
				for k, p := range b.Parameters() {
					if i%3 != 2 || k == 0 {
						p.Freeze()
					}
				}
			}
			w := must.New(staged(net, pg, adamW, deep, stage))
			if p := net.blocks[0].Parameters()[0]; p.Part() == nil != (stage == 1) {
				return fmt.Errorf("stage %d: a frozen parameter has the part %v", stage, p.Part())
			}
			var losses []float64
			for step := range 8 {
				if step == 4 {
					if hasState, err := w.zero.Regroup(pg.Context(), comm.Membership{Steps: step}); !hasState || err != nil {
						return fmt.Errorf("has the state: %v, %w", hasState, err)
					}
				}
				l, err := w.train(pg, device.Float64, step, step+1)
				if err != nil {
					return fmt.Errorf("stage %d, step %d: %w", stage, step, err)
				}
				losses = append(losses, l...)
			}
			got := must.New(w.wholeBits(net))
			if pg.Rank() == 1 {
				w.zero.BeginLoad() // as if the rank had lost its shards
			}
			_, err := w.zero.Regroup(pg.Context(), comm.Membership{Steps: 8})
			if (err != nil) != (stage == 3) || err != nil && !strings.Contains(err.Error(), "the frozen parameters of a lost rank are lost") {
				return fmt.Errorf("stage %d: Regroup without the shards of rank 1 returned %w", stage, err)
			}
			if stage == 1 {
				want, parameters = losses, got
			} else if !slices.Equal(losses, want) || !bytes.Equal(got, parameters) {
				return fmt.Errorf("losses %v, want %v; the parameters are those of stage 1: %t", losses, want, bytes.Equal(got, parameters))
			}
		}
		return nil
	}, 2, 4)
}

// OnRank lets one rank alone read and evaluate the model, in slots, and returns an error on all ranks.
func TestOnRank(t *testing.T) {
	onBoth(t, func(pg *comm.ProcessGroup) error {
		x := samples(pg, device.Float64, 100)
		var want [][]byte
		for _, stage := range []int{1, 3} {
			net := newChain(double, 0)
			net.blocks[4].Parameters()[0].Freeze()
			w := must.New(staged(net, pg, adamW, deep, stage))
			ema := must.New(optim.NewEMA(net, w.zero, nil))
			for step := range 4 {
				if _, err := w.train(pg, device.Float64, step, step+1); err != nil {
					return err
				}
				if err := ema.Update(); err != nil {
					return err
				}
				with := func(f func() error) error { return f() }
				if step%2 == 1 { // the averages
					with = ema.With
				}
				var got [][]byte
				read := func() error {
					before := pg.Device().Memory().InUse
					got = [][]byte{allBits(net)}
					if now := pg.Device().Memory().InUse; now > before {
						return fmt.Errorf("reading takes %d bytes", now-before)
					}
					autograd.NoGrad(pg.Device(), func() { got = append(got, bits(w.model.Forward(x)), bits(w.model.Forward(x))) })
					return nil
				}
				if err := with(func() error { return w.model.(*Model).OnRank(1, read) }); err != nil {
					return err
				}
				if stage == 1 {
					want = append(want, got...)
				} else if pg.Rank() == 1 && !slices.EqualFunc(got, want[3*step:3*step+3], bytes.Equal) {
					return fmt.Errorf("after step %d the model on one rank differs from that of stage 1", step)
				}
			}
			if err := w.model.(*Model).OnRank(0, func() error { net.first.Var().Tensor(); return errInjected }); err == nil || !strings.Contains(err.Error(), errInjected.Error()) {
				return fmt.Errorf("OnRank returned %w", err)
			}
			if err := w.model.(*Model).OnRank(pg.Size(), func() error { return nil }); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("OnRank of rank %d, want 0 to %d", pg.Size(), pg.Size()-1)) {
				return fmt.Errorf("OnRank of a rank that does not exist: %w", err)
			}
			var e *NotWholeError
			if err := panicking(func() { net.first.Var().Tensor() }); stage == 3 && !errors.As(err, &e) {
				return fmt.Errorf("after OnRank, Tensor panics with %w", err)
			}
		}
		return nil
	}, 2, 4)
}

// An optimizer needs no unrounded values of frozen parameters, so stage 3 keeps none.
func TestFrozenParametersHaveNoMasters(t *testing.T) {
	onBoth(t, func(pg *comm.ProcessGroup) error {
		net := nn.Sequential(nn.Linear(64, 64, &nn.LinearOptions{Compute: device.Float32}), nn.Linear(64, 64, &nn.LinearOptions{Compute: device.Float32}))
		err := nn.Place(net, pg.Device(), 1)
		if err == nil {
			err = nn.Cast(net, device.BFloat16, &nn.CastOptions{Masters: true})
		}
		if err != nil {
			return err
		}
		for _, p := range net.Parameters()[:2] {
			p.Freeze()
		}
		w := must.New(staged(net, pg, adamW, deep, 3))
		for _, p := range w.model.(*Model).shards.frozen {
			if m := p.local.Master(); m != nil {
				return fmt.Errorf("%s has a master of %v", p.Name(), m.Shape())
			}
		}
		return nil
	}, 2)
}

// A module that another model has divided can be wrapped again, in the same stage or another one, for example with other
// frozen parameters. It keeps its parameters.
func TestWrappedAgain(t *testing.T) {
	onBoth(t, func(pg *comm.ProcessGroup) error {
		var want []byte
		for _, stages := range [][2]int{{1, 1}, {1, 3}, {3, 3}, {3, 2}} {
			net := newChain(double, 0)
			w := must.New(staged(net, pg, adamW, deep, stages[0]))
			if _, err := w.train(pg, device.Float64, 0, 2); err != nil {
				return err
			}
			if want == nil {
				want = must.New(w.wholeBits(net))
			}
			frozen := net.blocks[1].Parameters()[0]
			frozen.Freeze()
			w, err := staged(net, pg, adamW, deep, stages[1])
			if stages == [2]int{3, 2} {
				if err == nil || !strings.Contains(err.Error(), "want stage 3 for frozen parameters") {
					return fmt.Errorf("a frozen parameter of stage 3 in stage 2: %w", err)
				}
				frozen.Var().RequireGrad()
				w, err = staged(net, pg, adamW, deep, stages[1])
			}
			if err != nil {
				return err
			}
			if !bytes.Equal(must.New(w.wholeBits(net)), want) {
				return fmt.Errorf("stages %v: other parameters", stages)
			}
			if _, err := w.train(pg, device.Float64, 2, 3); err != nil {
				return fmt.Errorf("stages %v: %w", stages, err)
			}
		}
		return nil
	}, 2)
}
