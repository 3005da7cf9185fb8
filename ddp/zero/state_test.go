package zero

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
)

// saved is a checkpoint. It lives on its own device.
type saved struct {
	net, state map[string]*autograd.Variable
}

// moved returns a copy of a state on another CPU device.
func moved(dev device.Device, state map[string]*autograd.Variable) map[string]*autograd.Variable {
	out := map[string]*autograd.Variable{}
	for name, v := range state {
		out[name] = autograd.Zeros(dev, v.DType(), v.Shape()...)
		copy(out[name].Tensor().Buf.Host(), bits(v))
	}
	return out
}

// A state is saved by two ranks and loaded by four ranks, by one rank, and by an optimizer without
// shards. The results are bit-identical to training without a restart on the same numbers of ranks.
func TestStateLoadsAtOtherWorldSizes(t *testing.T) {
	const steps = 3
	for name, make := range map[string]maker{"SGD": sgd, "AdamW": adamW, "AdamW with moments of 16 bits": narrowAdamW} {
		for _, half := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, 16 bits: %v", name, half), func(t *testing.T) {
				o, in := double, device.Float64
				if half {
					o, in = nn.LinearOptions{DType: device.BFloat16, Compute: device.Float32}, device.Float32
				}
				dev := devices(t, 1, false)[0]
				var with, without saved
				at := 0
				// Both use the same sequence of group sizes, because the rounding of a mean depends on them.
				for _, ranks := range []int{2, 4, 1, 2} {
					train := func(wrap wrapper, lag bool, s *saved) {
						commtest.OnDevices(t, devices(t, ranks, lag), quiet(), func(pg *comm.ProcessGroup) error {
							net := mlp(o)
							w := must.New(wrap(net, pg, make, small))
							if at > 0 {
								if err := errors.Join(nn.LoadState(t.Context(), net, s.net), w.load(t.Context(), at, s.state)); err != nil {
									return err
								}
							}
							if _, err := w.train(pg, in, at, at+steps); err != nil {
								return err
							}
							if n, whole := w.opt.Committed(); n != at+steps || !whole {
								return fmt.Errorf("%d steps committed, whole: %v", n, whole)
							}
							state, err := w.state(pg)
							if err == nil && pg.Rank() == 0 {
								*s = saved{moved(dev, nn.State(net)), moved(dev, state)}
							}
							return err
						})
					}
					train(divided, true, &with)
					train(whole, false, &without)
					if at += steps; t.Failed() {
						return
					}
					if !maps.EqualFunc(with.net, without.net, equal) || !maps.EqualFunc(with.state, without.state, equal) {
						t.Fatalf("after %d steps, the last on %d ranks, the parameters or the state differ from those without shards", at, ranks)
					}
					if ranks == 4 { // also load the state of shards without shards, and vice versa
						with, without = without, with
					}
				}
			})
		}
	}
}

// load restores the optimizer, with shards or without.
func (w wrapped) load(ctx context.Context, steps int, state map[string]*autograd.Variable) error {
	if w.zero != nil {
		return w.zero.Load(ctx, steps, state)
	}
	mine, err := w.local.State()
	w.local.BeginLoad()
	for _, b := range mine {
		copy(b.Var().Tensor().Buf.Host(), bits(state[b.Name()]))
	}
	w.local.EndLoad(steps)
	return err
}

func equal(a, b *autograd.Variable) bool {
	return a.Shape().Equal(b.Shape()) && bytes.Equal(bits(a), bits(b))
}

// A state that does not fit is an error and changes nothing.
func TestLoadStateThatDoesNotFitChangesNothing(t *testing.T) {
	commtest.OnRanks(t, 2, quiet(), func(pg *comm.ProcessGroup) error {
		net := mlp(double)
		w, err := divided(net, pg, adamW, small)
		if err == nil {
			_, err = w.train(pg, device.Float64, 0, 2)
		}
		if err != nil {
			return err
		}
		good := must.New(gathered(pg, w.zero))
		for what, c := range map[string]struct {
			change func(map[string]*autograd.Variable)
			check  func(e *nn.StateError) []string
			want   string
		}{
			"too few": {func(s map[string]*autograd.Variable) { delete(s, "0.bias.mean") },
				func(e *nn.StateError) []string { return e.Missing }, "0.bias.mean"},
			"too many": {func(s map[string]*autograd.Variable) { s["0.bias.master"] = s["0.bias.mean"] },
				func(e *nn.StateError) []string { return e.Unexpected }, "0.bias.master"},
			"other shapes": {func(s map[string]*autograd.Variable) { s["0.weight.mean"] = s["0.bias.mean"] },
				func(e *nn.StateError) []string { return []string{e.Mismatched[0].Name} }, "0.weight.mean"},
		} {
			bad := maps.Clone(good)
			c.change(bad)
			err := w.zero.Load(t.Context(), 7, bad)
			var e *nn.StateError
			if !errors.As(err, &e) || !slices.Contains(c.check(e), c.want) {
				return fmt.Errorf("%s: got %v, want %s in it", what, err, c.want)
			}
			if n, whole := w.opt.Committed(); n != 2 || !whole {
				return fmt.Errorf("%s: %d steps committed, whole: %v", what, n, whole)
			}
		}
		return nil
	})
}

// clumsy is a device whose copies fail while fails is set.
type clumsy struct {
	device.Device
	fails bool
}

func (c *clumsy) Copy(s device.Stream, dst, src device.Buffer) error {
	if c.fails {
		return errInjected
	}
	return c.Device.Copy(s, dst, src)
}

// If a rank cannot contribute its shard, no rank takes the incomplete tensor for the whole.
func TestFailedGatherReachesAllRanks(t *testing.T) {
	var all []device.Device
	for _, d := range devices(t, 2, false) {
		all = append(all, &clumsy{Device: d})
	}
	commtest.OnDevices(t, all, quiet(), func(pg *comm.ProcessGroup) error {
		w := must.New(divided(mlp(double), pg, adamW, small))
		pg.Device().(*clumsy).fails = pg.Rank() == 1
		err := w.zero.Gather(t.Context(), func(string, device.Tensor) error { return nil })
		if err == nil || !strings.Contains(err.Error(), errInjected.Error()) {
			return fmt.Errorf("got %v", err)
		}
		return nil
	})
}

// Gather keeps an optimizer that the program does not use again from the garbage collector until it has sent the
// state.
func TestGatherOfTheLastUse(t *testing.T) {
	collect := func() { // returns when clean-ups run
		ran := make(chan struct{})
		runtime.AddCleanup(new([64]byte), func(c chan struct{}) { close(c) }, ran)
		runtime.GC()
		<-ran
	}
	commtest.OnRanks(t, 2, quiet(), func(pg *comm.ProcessGroup) error {
		make := func() (*Optimizer[Local], error) {
			w, err := divided(mlp(double), pg, adamW, small)
			if err == nil {
				_, err = w.train(pg, device.Float64, 0, 2)
			}
			return w.zero, err
		}
		keeping := must.New(make())
		want := must.New(gathered(pg, keeping))
		last := must.New(make())
		dev := pg.Device()
		got := map[string]*autograd.Variable{}
		err := last.Gather(t.Context(), func(name string, whole device.Tensor) error {
			collect()
			got[name] = autograd.Zeros(dev, whole.DType, whole.Shape...) // may take memory that was freed
			return dev.Kernels().Copy(dev.Compute(), got[name].Tensor(), whole)
		})
		if err == nil && !maps.EqualFunc(got, want, equal) {
			err = errors.New("Gather of an optimizer that is not used again gives another state")
		}
		return err
	})
}
