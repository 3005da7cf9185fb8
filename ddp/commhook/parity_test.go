package commhook_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/ddp/commhook"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

func powerSGD(o commhook.PowerSGDOptions) reducer.Hook {
	h, err := commhook.NewPowerSGD(&o)
	if err != nil {
		panic(err)
	}
	return h
}

// Training with a hook that loses nothing is bit-identical to training without a hook.
func TestDDPHookParity(t *testing.T) {
	const steps = 25 // local SGD starts after 10 passes, the rebuilt buckets after one
	for _, c := range []struct {
		name string
		hook hooks
	}{
		{"allreduce", always(commhook.AllReduce)},
		{"allreduce_process_group", func(pg *comm.ProcessGroup) (reducer.Hook, error) {
			other, err := everybody(pg)
			return commhook.Func(func(b reducer.GradBucket) (device.Tensor, reducer.Reduction) {
				return b.Flat, other.With(&comm.CallOptions{Name: b.Name}).AllReduce(b.Flat, b.Op)
			}), err
		}},
		{"powerSGD", always(func() reducer.Hook { return powerSGD(commhook.PowerSGDOptions{}) })}, // starts after the last step
		{"post_localSGD", func(pg *comm.ProcessGroup) (reducer.Hook, error) {
			all, err := everybody(pg)
			return commhook.PostLocalSGD(&commhook.PostLocalSGDOptions{StartAfter: 10, Subgroup: all}), err
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			onBoth(t, 2, func(pg *comm.ProcessGroup) error {
				_, want, err := run{hook: plain, steps: steps}.train(pg)
				if err != nil {
					return err
				}
				_, got, err := run{hook: c.hook, steps: steps}.train(pg)
				if err != nil {
					return err
				}
				if !bytes.Equal(got, want) {
					return fmt.Errorf("the parameters differ")
				}
				return nil
			})
		})
	}
}

// Hooks that lose precision reach about the same loss, and the ranks stay equal.
func TestLossOfLossyHooks(t *testing.T) {
	testkit.Long(t)
	const steps = 120
	hooks := []struct {
		name      string
		tolerance float64
		hook      func() reducer.Hook
	}{
		{"BF16", 0.01, func() reducer.Hook { return commhook.BF16(nil) }},
		{"FP16", 0.01, func() reducer.Hook { return commhook.FP16(nil) }},
		{"Int8", 0.01, commhook.Int8},
		{"PowerSGD", 0.3, func() reducer.Hook { return powerSGD(commhook.PowerSGDOptions{StartAfter: 10}) }},
		{"PowerSGD of rank 4", 0.08, func() reducer.Hook {
			return powerSGD(commhook.PowerSGDOptions{Rank: 4, StartAfter: -1, MinCompression: 1})
		}},
		{"PowerSGD of rank 4, in Int8", 0.08, func() reducer.Hook {
			return powerSGD(commhook.PowerSGDOptions{Rank: 4, StartAfter: -1, MinCompression: 1, Hook: commhook.Int8()})
		}},
		{"FP16 of PowerSGD of rank 4", 0.08, func() reducer.Hook {
			return commhook.FP16(powerSGD(commhook.PowerSGDOptions{Rank: 4, StartAfter: 10, MinCompression: 1}))
		}},
	}
	onRanks(t, commtest.Sizes(t, 3)[0], true, func(pg *comm.ProcessGroup) error {
		want, _, err := run{hook: plain, steps: steps}.train(pg)
		if err != nil {
			return err
		}
		for _, c := range hooks {
			got, params, err := run{hook: always(c.hook), steps: steps}.train(pg)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			if pg.Rank() == 0 {
				t.Logf("%s: loss %v, without a hook %v, %+.2g%%", c.name, got, want, 100*(got/want-1))
			}
			if !(got/want-1 <= c.tolerance) {
				return fmt.Errorf("%s: a loss of %v, want %v and %v%% at most more", c.name, got, want, 100*c.tolerance)
			}
			if err := agree(pg, c.name+": the parameters", params); err != nil {
				return err
			}
		}
		return nil
	})
}

// Averaging the replicas after each step is equivalent to averaging the gradients. Averaging them
// less often reaches about the same loss. The replicas of a subgroup are always equal.
func TestPostLocalSGD(t *testing.T) {
	const steps, start = 60, 20
	cases := []struct {
		period    int
		subgroups bool
		tolerance float64
	}{{1, false, 1e-4}, {4, false, 0.05}, {4, true, 0.05}}
	onRanks(t, 4, false, func(pg *comm.ProcessGroup) error {
		want, _, err := run{hook: plain, steps: steps}.train(pg)
		if err != nil {
			return err
		}
		pairs := must.New(pg.Split(context.Background(), pg.Rank()/2, pg.Rank()))
		for _, c := range cases {
			o := commhook.PostLocalSGDOptions{StartAfter: start}
			if c.subgroups {
				o.Subgroup = pairs
			}
			averager := commhook.NewAverager(pg, &commhook.AveragerOptions{Period: c.period, StartAfter: start})
			equalSteps, averaged := 0, 0
			got, params, err := run{steps: steps,
				hook: always(func() reducer.Hook { return commhook.PostLocalSGD(&o) }),
				each: func(m *ddp.Model) error {
					var params []*autograd.Variable
					var mine []byte
					for _, p := range m.Parameters() {
						params, mine = append(params, p.Var()), append(mine, bits(p.Var().Device(), p.Var().Tensor())...)
					}
					all, err := comm.AllGatherObject(context.Background(), pg, sha256.Sum256(mine))
					if err != nil {
						return err
					}
					if c.subgroups && (all[0] != all[1] || all[2] != all[3]) {
						return errors.New("the parameters in a subgroup differ")
					}
					if all[0] == all[1] && all[1] == all[2] && all[2] == all[3] {
						equalSteps++
					}
					before := params[0].Version()
					err = averager.Step(context.Background(), params)
					averaged += int(params[0].Version() - before)
					return err
				},
			}.train(pg)
			if err != nil {
				return fmt.Errorf("%+v: %w", c, err)
			}
			if !(math.Abs(got/want-1) <= c.tolerance) {
				return fmt.Errorf("%+v: a loss of %v, want %v", c, got, want)
			}
			if equalSteps != start {
				return fmt.Errorf("%+v: the replicas were alike behind %d of %d steps, want %d", c, equalSteps, steps, start)
			}
			if want := (steps - start) / c.period; averaged != want {
				return fmt.Errorf("%+v: %d writes to a parameter count as averages, want %d", c, averaged, want)
			}
			if err := agree(pg, "the parameters in the end", params); err != nil {
				return fmt.Errorf("%+v: %w", c, err)
			}
		}
		return nil
	})
}

// DivideByActive counts the ranks of the whole group. Join refuses it on every rank with a hook
// that averages over a part of them, also as an inner hook.
func TestPostLocalSGDDividedByActive(t *testing.T) {
	onRanks(t, 2, false, func(pg *comm.ProcessGroup) error {
		for _, hook := range []reducer.Hook{
			commhook.PostLocalSGD(nil), commhook.BF16(commhook.PostLocalSGD(nil)), powerSGD(commhook.PowerSGDOptions{Hook: commhook.PostLocalSGD(nil)}),
			commhook.BF16(nil), powerSGD(commhook.PowerSGDOptions{}),
		} {
			model := must.New(ddp.New(nn.Linear(3, 3, nil), pg, &ddp.Options{Hook: hook}))
			err := model.Join(func() error { return nil }, &ddp.JoinOptions{DivideByActive: true})
			if local := strings.Contains(fmt.Sprint(hook), "local SGD"); local != (err != nil) || local && !strings.Contains(err.Error(), "DivideByActive") {
				return fmt.Errorf("rank %d: with %v: %v", pg.Rank(), hook, err)
			}
			if err := model.Join(func() error { return nil }, nil); err != nil {
				return err
			}
		}
		return nil
	})
}

// Ranks without inputs take part in the communication of the other ranks' hooks.
func TestUnevenInputs(t *testing.T) {
	eachHook(t, func(t *testing.T, c hookCase) {
		onBoth(t, 2, func(pg *comm.ProcessGroup) error {
			const width, rows = 12, 4
			dev := pg.Device()
			net := nn.Sequential(nn.Linear(width, width, nil), nn.ReLU(), nn.Linear(width, width, nil))
			model := must.New(ddp.New(net, pg, &ddp.Options{Hook: c.make(), BucketCapMB: 1e-4}))
			opt := must.New(optim.NewSGD(model.Parameters(), &optim.SGDOptions{LR: 0.1}))
			err := model.Join(func() error {
				for range 2 + 3*pg.Rank() {
					x := autograd.Zeros(dev, device.Float32, rows, width)
					if err := dev.Kernels().Fill(dev.Compute(), x.Tensor(), 1); err != nil {
						return err
					}
					if err := errors.Join(nn.MSELoss(model.Forward(x), x, nil).Backward(nil), opt.Step()); err != nil {
						return err
					}
					opt.ZeroGrad()
				}
				return nil
			}, nil)
			if err != nil {
				return err
			}
			var all []byte
			for _, p := range model.Parameters() {
				all = append(all, bits(dev, p.Var().Tensor())...)
			}
			return agree(pg, "the parameters", all)
		})
	})
}
