package zero

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/goddp/goddp/amp"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// join calls Join of this package, or that of package ddp without shards.
func (w wrapped) join(o JoinOptions, f func() error) error {
	if m, ok := w.model.(*Model); ok {
		return m.Join(f, &o)
	}
	return w.model.(*ddp.Model).Join(f, &ddp.JoinOptions{DivideByActive: o.DivideByActive, StopEarly: o.StopEarly, Optimizer: w.opt})
}

// uneven returns the number of inputs of a rank.
type uneven func(rank, ranks int) int

// shares are distributions of inputs.
var shares = []struct {
	name string
	of   uneven
}{
	{"rank 0 runs out first", func(rank, _ int) int { return 3 + rank }},
	{"rank 0 has none", func(rank, _ int) int { return 2 * rank }},
	{"rank 0 runs out last", func(rank, ranks int) int { return 2 + 2*(ranks-1-rank) }},
}

// most returns the largest number of inputs of a rank.
func (u uneven) most(ranks int) (most int) {
	for rank := range ranks {
		most = max(most, u(rank, ranks))
	}
	return most
}

// Ranks without inputs make the steps of the other ranks. The parameters and the whole state are
// bit-identical to training without shards. Afterwards all ranks can go on training.
func TestUnevenInputs(t *testing.T) {
	bf := nn.LinearOptions{DType: device.BFloat16, Compute: device.Float32}
	ranks := []int{3} // a rank has no inputs while others have
	if testkit.IsLong() {
		ranks = []int{2, 4}
	}
	for _, c := range []struct {
		name  string
		make  maker
		o     nn.LinearOptions
		in    device.DType
		opts  ddp.Options
		join  JoinOptions
		every int // the number of passes of a step; all but the last accumulate
	}{
		{"SGD", sgd, double, device.Float64, ddp.Options{CheckReplicas: 1}, JoinOptions{}, 1},
		{"by the active ranks", sgd, double, device.Float64, ddp.Options{CheckNonFinite: true}, JoinOptions{DivideByActive: true}, 1},
		{"accumulating", sgd, double, device.Float64, ddp.Options{}, JoinOptions{}, 2},
		{"AdamW", grouped, double, device.Float64, ddp.Options{}, JoinOptions{DivideByActive: true}, 2},
		{"16 bits", adamW, bf, device.Float32, ddp.Options{ReduceDType: device.Float32}, JoinOptions{}, 1},
	} {
		c.opts.BucketCapMB = small.BucketCapMB
		for _, share := range shares {
			t.Run(c.name+", "+share.name, func(t *testing.T) {
				onBoth(t, func(pg *comm.ProcessGroup) error {
					a, b := mlp(c.o), mlp(c.o)
					plain := must.New(whole(a, pg, c.make, &c.opts))
					sharded := must.New(divided(b, pg, c.make, &c.opts))
					steps := 0
					for epoch, inputs := range []uneven{share.of, func(int, int) int { return 2 }} {
						for _, w := range []wrapped{plain, sharded} {
							err := w.join(c.join, func() error {
								for i := range inputs(pg.Rank(), pg.Size()) {
									if err := w.accumulate(pg, c.in, 10*epoch+i, c.every); err != nil {
										return err
									}
									if err := w.opt.Step(); err != nil {
										return err
									}
									w.opt.ZeroGrad()
								}
								return nil
							})
							if err != nil {
								return fmt.Errorf("epoch %d: %w", epoch, err)
							}
						}
						steps += inputs.most(pg.Size())
						if n, whole := sharded.zero.Committed(); n != steps || !whole {
							return fmt.Errorf("epoch %d: %d steps committed, whole: %v; want %d", epoch, n, whole, steps)
						}
						if !bytes.Equal(allBits(a), allBits(b)) {
							return fmt.Errorf("epoch %d: the parameters differ from those of training without shards", epoch)
						}
						if err := sameState(pg, sharded, plain); err != nil {
							return fmt.Errorf("epoch %d: %w", epoch, err)
						}
						if g := b.Parameters()[0].Grad(); g != nil {
							return fmt.Errorf("epoch %d: there is a gradient left, %v", epoch, g)
						}
					}
					return nil
				}, ranks...)
			})
		}
	}
}

// accumulate makes the passes of a step. The last one reduces.
func (w wrapped) accumulate(pg *comm.ProcessGroup, dt device.DType, step, passes int) error {
	for i := range passes - 1 {
		err := w.model.NoSync(func() error { return w.loss(pg, dt, passes*step+i).Backward(nil) })
		if err != nil {
			return err
		}
	}
	return w.loss(pg, dt, passes*step+passes-1).Backward(nil)
}

// Parameters that some ranks use are updated on all ranks, including ranks without inputs.
func TestUnevenInputsUnusedParameters(t *testing.T) {
	for _, opts := range []ddp.Options{{FindUnusedParameters: true}, {StaticGraph: true}} {
		opts.BucketCapMB = small.BucketCapMB
		onBoth(t, func(pg *comm.ProcessGroup) error {
			return asWithoutShards(func(wrap wrapper) (nn.Module, error) {
				step := 0
				skip := func() bool { return pg.Rank() == 0 || opts.FindUnusedParameters && step%2 == 0 }
				net := middleFirst{newForked(skip)}
				w := must.New(wrap(net, pg, adamW, &opts))
				for epoch := range 2 {
					err := w.join(JoinOptions{}, func() error {
						for step = range 2 + 2*(pg.Rank()+epoch)%pg.Size() {
							if _, err := w.train(pg, device.Float64, step, step+1); err != nil {
								return err
							}
						}
						return nil
					})
					if err != nil {
						return nil, err
					}
				}
				return net, nil
			})
		}, 2, 4)
	}
}

// alike returns an error unless the ranks' parameters are equal.
func alike(pg *comm.ProcessGroup, net nn.Module) error {
	all, err := comm.AllGatherObject(context.Background(), pg, allBits(net))
	if err == nil && !bytes.Equal(all[0], allBits(net)) {
		err = errors.New("the parameters differ from rank 0's")
	}
	return err
}

// made also checks the number of steps that the ranks have committed.
func made(pg *comm.ProcessGroup, net nn.Module, w wrapped, steps int) error {
	if n, whole := w.opt.Committed(); n != steps || !whole {
		return fmt.Errorf("%d steps committed, whole: %v; want %d", n, whole, steps)
	}
	return alike(pg, net)
}

// loop makes n steps with the losses of a scaler. at, if it is not nil, is called at three points of each step, and may
// end the loop.
func (w wrapped) loop(pg *comm.ProcessGroup, scaler *amp.Scaler, step func() error, n int, at func(i int, where string) error) error {
	if at == nil {
		at = func(int, string) error { return nil }
	}
	for i := range n {
		if err := at(i, "before the pass"); err != nil {
			return err
		}
		if err := scaler.Scale(w.loss(pg, device.Float64, i)).Backward(nil); err != nil {
			return err
		}
		if err := at(i, "before the step"); err != nil {
			return err
		}
		if err := step(); err != nil {
			return err
		}
		w.opt.ZeroGrad()
		if err := at(i, "behind the step"); err != nil {
			return err
		}
	}
	return nil
}

// scaling returns a function that makes w's steps, with a loss scaler or without.
func (w wrapped) scaling(scaled bool) (scaler *amp.Scaler, step func() error) {
	scaler = must.New(amp.NewScaler(&amp.Options{Disabled: !scaled}))
	return scaler, func() error {
		if err := scaler.Step(w.opt); err != nil {
			return err
		}
		scaler.Update()
		return nil
	}
}

// onBothScaled is onBoth, with and without a loss scaler.
func onBothScaled(t *testing.T, f func(pg *comm.ProcessGroup, scaled bool) error) {
	for _, scaled := range []bool{false, true} {
		t.Run(fmt.Sprint("scaled: ", scaled), func(t *testing.T) {
			onBoth(t, func(pg *comm.ProcessGroup) error { return f(pg, scaled) }, 2, 4)
		})
	}
}

// With StopEarly all ranks stop in the step for which the first rank has no input, with equal
// parameters, and can go on training.
func TestUnevenInputsStopEarly(t *testing.T) {
	onBothScaled(t, func(pg *comm.ProcessGroup, scaled bool) error {
		net := mlp(double)
		w := must.New(divided(net, pg, sgd, small))
		inputs := 5
		if pg.Rank() == 1 {
			inputs = 2
		}
		scaler, step := w.scaling(scaled)
		err := w.join(JoinOptions{StopEarly: true, Step: step}, func() error {
			return w.loop(pg, scaler, step, inputs, nil)
		})
		var left *reducer.LeftError
		if !errors.As(err, &left) || !slices.Equal(left.Left, []reducer.Left{{Rank: 1}}) {
			return fmt.Errorf("got %v, want a LeftError of rank 1", err)
		}
		if err := made(pg, net, w, 2); err != nil {
			return err
		}
		if _, err := w.train(pg, device.Float64, 5, 7); err != nil {
			return err
		}
		return made(pg, net, w, 4)
	})
}

// If the loop of one rank returns an error, at any point of a step, the loops of the other ranks
// end too. All ranks have the parameters of the steps that all ranks have made. If the error comes
// between a pass and its step, Join makes that step.
func TestUnevenInputsError(t *testing.T) {
	for _, where := range []string{"before the pass", "before the step", "behind the step"} {
		t.Run(where, func(t *testing.T) {
			onBothScaled(t, func(pg *comm.ProcessGroup, scaled bool) error {
				net := mlp(double)
				w := must.New(divided(net, pg, sgd, small))
				const bad = 2 // the step with the error
				last := pg.Size() - 1
				fail := func(i int, at string) error {
					if pg.Rank() == last && i == bad && at == where {
						return errInjected
					}
					return nil
				}
				scaler, step := w.scaling(scaled)
				err := w.join(JoinOptions{Step: step}, func() error {
					if pg.Rank() == 0 && pg.Size() > 2 {
						return nil // this rank has no inputs
					}
					if err := w.loop(pg, scaler, step, 5, fail); err != nil {
						return err
					}
					return errors.New("nobody said a word")
				})
				var left *reducer.LeftError
				switch {
				case pg.Rank() == last && err != errInjected:
					return fmt.Errorf("got %v, want the loop's own error", err)
				case pg.Rank() != last && (!errors.As(err, &left) || !slices.Equal(left.Left, []reducer.Left{{Rank: last, Cause: errInjected.Error()}})):
					return fmt.Errorf("got %v, want a LeftError of rank %d", err, last)
				}
				steps := bad
				if where != "before the pass" {
					steps++
				}
				if err := made(pg, net, w, steps); err != nil {
					return err
				}
				if _, err := w.train(pg, device.Float64, 5, 6); err != nil {
					return err
				}
				return made(pg, net, w, steps+1)
			})
		})
	}
}

// All ranks skip the step after a pass that lacks a gradient, with and without inputs, whether a
// rank that knows early calls Step or not.
func TestUnevenInputsMissingGradient(t *testing.T) {
	for _, calls := range []bool{true, false} {
		onBoth(t, func(pg *comm.ProcessGroup) error {
			last := pg.Size() - 1
			inputs := uneven(func(rank, _ int) int { return 2 + 2*rank })
			step := 0
			missing := func() bool { return step == 1 || step == 3 } // the gradient of rank 0 is missing
			net := newForked(func() bool { return missing() && pg.Rank() == last })
			w := must.New(divided(net, pg, adamW, small))
			err := w.join(JoinOptions{}, func() error {
				for step = range inputs(pg.Rank(), pg.Size()) {
					err := w.loss(pg, device.Float64, step).Backward(nil)
					if err == nil || calls {
						err = w.opt.Step()
					}
					if errors.As(err, new(*reducer.MissingGradientError)) != missing() || (err != nil) != missing() {
						return fmt.Errorf("step %d: %v", step, err)
					}
					w.opt.ZeroGrad()
				}
				return nil
			})
			if err != nil {
				return err
			}
			return made(pg, net, w, inputs.most(pg.Size())-2)
		}, 2, 4)
	}
}

// All ranks make a scaled step or all skip it, because of an overflow or of a missing gradient on
// one rank. The result is that of training without shards.
func TestUnevenInputsScaled(t *testing.T) {
	half := nn.LinearOptions{DType: device.Float16, Compute: device.Float32}
	onBoth(t, func(pg *comm.ProcessGroup) error {
		last := pg.Size() - 1
		inputs := uneven(func(rank, _ int) int { return 6 * rank })
		return asWithoutShards(func(wrap wrapper) (nn.Module, error) {
			i, linear := 0, func() nn.Module { return nn.Linear(width, width, &half) }
			missing := func() bool { return i == 2 || i == 4 }
			net := forked{linear(), linear(), linear(), func() bool { return missing() && pg.Rank() == last }}
			w := must.New(wrap(net, pg, sgd, small))
			scaler := must.New(amp.NewScaler(&amp.Options{InitScale: 0x1p26, BackoffFactor: 1. / 16}))
			average := must.New(optim.NewEMA(net, w.opt, &optim.EMAOptions{Decay: 0.5}))
			step := func() error {
				if err := scaler.Step(w.opt); err != nil {
					return err
				}
				scaler.Update()
				return average.Update()
			}
			err := w.join(JoinOptions{Step: step}, func() error {
				for i = range inputs(pg.Rank(), pg.Size()) {
					err := scaler.Scale(w.loss(pg, device.Float32, i)).Backward(nil)
					if i == 2 || err == nil { // after an error the loop may call Step or not
						err = step()
					}
					if errors.As(err, new(*reducer.MissingGradientError)) != missing() || (err != nil) != missing() {
						return fmt.Errorf("step %d: %v", i, err)
					}
					w.opt.ZeroGrad()
				}
				return nil
			})
			if err != nil || w.zero == nil {
				return net, err
			}
			scales, err := comm.AllGatherObject(context.Background(), pg, scaler.GetScale())
			if err != nil {
				return nil, err
			}
			committed, _ := w.opt.Committed()
			if all := inputs.most(pg.Size()) - 2; committed == 0 || committed == all || scales[0] != scaler.GetScale() {
				return nil, fmt.Errorf("%d of %d steps committed, scales %v; want some to overflow, and one scale", committed, all, scales)
			}
			if err := average.With(func() error { return alike(pg, net) }); err != nil {
				return nil, fmt.Errorf("averages: %w", err)
			}
			return net, made(pg, net, w, committed)
		})
	}, 2, 4)
}

// Options and calls that cannot be combined are errors on every rank.
func TestJoinInvalidArguments(t *testing.T) {
	onBoth(t, func(pg *comm.ProcessGroup) error {
		w := must.New(divided(mlp(double), pg, sgd, small))
		never := func() error { return errors.New("the loop runs") }
		var o JoinOptions
		if pg.Rank() == 1 {
			o.Step = w.opt.Step
		}
		var m *reducer.ModelMismatchError
		if err := w.join(o, never); !errors.As(err, &m) || m.Theirs != "Step true" {
			return fmt.Errorf("with Step on one rank: %v", err)
		}
		err := w.join(JoinOptions{}, func() error {
			if err := w.join(JoinOptions{}, never); err == nil || !strings.Contains(err.Error(), "Join was called within Join") {
				return fmt.Errorf("within Join: %v", err)
			}
			scaler := must.New(amp.NewScaler(nil))
			if err := scaler.Scale(w.loss(pg, device.Float64, 0)).Backward(nil); err != nil {
				return err
			}
			return scaler.Step(w.opt)
		})
		if err == nil || !strings.Contains(err.Error(), "JoinOptions.Step") {
			return fmt.Errorf("with scaled steps: %v", err)
		}
		err = w.join(JoinOptions{}, func() error {
			if err := w.loss(pg, device.Float64, 0).Backward(nil); err != nil {
				return err
			}
			_, err := w.zero.ClipGradNorm(1, nil)
			return err
		})
		if err == nil || !strings.Contains(err.Error(), "JoinOptions.Step") {
			return fmt.Errorf("with gradients clipped: %v", err)
		}
		return w.join(JoinOptions{Disabled: true}, func() error { // without communication
			_, err := w.train(pg, device.Float64, 0, 2)
			return err
		})
	}, 2)
}

// The end of ddp.Model.Join cannot copy a state of which each rank has a part.
func TestJoinWithoutZeroIsRefused(t *testing.T) {
	onBoth(t, func(pg *comm.ProcessGroup) error {
		w := must.New(divided(nn.Sequential(nn.Linear(4, 4, nil), nn.BatchNorm1d(4, nil)), pg, adamW, small))
		err := w.model.(*Model).Model.Join(func() error { return nil }, &ddp.JoinOptions{Optimizer: w.opt})
		if err == nil || !strings.Contains(err.Error(), "use Join of package ddp/zero") {
			return fmt.Errorf("got %v", err)
		}
		return nil
	}, 2)
}
