package commhook_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/commhook"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/must"
)

// Invalid options are errors that name the option and its value.
func TestInvalidPowerSGDState(t *testing.T) {
	for option, o := range map[string]commhook.PowerSGDOptions{
		"Rank is -1": {Rank: -1}, "MinCompression is -2": {MinCompression: -2}, "MinCompression is NaN": {MinCompression: math.NaN()},
		"MinCompression is +Inf": {MinCompression: math.Inf(1)},
	} {
		_, err := commhook.NewPowerSGD(&o)
		if err == nil || !strings.Contains(err.Error(), option) {
			t.Errorf("%s: %v", option, err)
		}
	}
	h, err := commhook.NewPowerSGD(nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, passes := range map[string]device.Tensor{
		"nothing": {}, "two numbers": device.HostTensor([]int64{1, 2}, device.Int64), "real": device.HostTensor([]float32{1}, device.Float32),
	} {
		if err := h.LoadState(map[string]device.Tensor{"passes": passes}); err == nil {
			t.Errorf("a state with %s for its passes was taken", name)
		}
	}
}

// outer returns a matrix [40 30] of rank 1. All ranks' matrices have proportional rows.
func outer(rank int) []float64 {
	g := make([]float64, 40*30)
	for j := range g {
		g[j] = math.Sin(float64(j/30+1)) * math.Cos(float64(1+(j%30)*(2+rank)))
	}
	return g
}

var single = []reducer.Param{{Name: "w", Shape: device.Shape{40, 30}, DType: device.Float32}}

// The average of matrices with a common direction has rank 1. PowerSGD loses nothing of it, with
// any random factor, with and without error feedback.
func TestPowerSGDOfLowRank(t *testing.T) {
	for _, o := range []commhook.PowerSGDOptions{
		{StartAfter: -1}, {StartAfter: -1, NoErrorFeedback: true}, {StartAfter: -1, NoWarmStart: true}, {StartAfter: 1, Rank: 3, Seed: 5},
	} {
		onRanks(t, 2, true, func(pg *comm.ProcessGroup) error {
			e := must.New(newDriver(pg, single, powerSGD(o), true))
			want := mean(single, 2, func(rank int) [][]float64 { return [][]float64{outer(rank)} })
			for pass := range 3 {
				got := must.New(e.pass([][]float64{outer(pg.Rank())}))
				if d := off(got[0], want[0]); !(d <= 1e-4) {
					return fmt.Errorf("%+v, pass %d: off by %v", o, pass, d)
				}
			}
			return nil
		})
	}
}

// With error feedback, later passes send what a pass does not send: the sum over the passes stays
// within a bound of the exact sum, even if one pass has gradients that are not finite and is not
// applied. Without error feedback it does not.
func TestPowerSGDErrorFeedback(t *testing.T) {
	const passes, rank = 60, 4
	for _, without := range []bool{false, true} {
		onRanks(t, 2, false, func(pg *comm.ProcessGroup) error {
			e := must.New(newDriver(pg, single, powerSGD(commhook.PowerSGDOptions{Rank: rank, StartAfter: -1, NoErrorFeedback: without}), true))
			want := mean(single, 2, func(rank int) [][]float64 { return random(single, rank, 0) })[0]
			sum := make([]float64, len(want))
			for pass := range passes + 1 {
				grads := random(single, pg.Rank(), 0)
				isInvalid := pass == 3
				if isInvalid && pg.Rank() == 1 {
					grads[0][5] = math.Inf(1)
				}
				got := must.New(e.pass(grads))
				if isInvalid {
					continue
				}
				for j, v := range got[0] {
					sum[j] += v / passes
				}
			}
			d := off(sum, want)
			if pg.Rank() == 0 {
				t.Logf("without feedback: %v: the mean over the passes is off by %v", without, d)
			}
			if d > 0.25 != without {
				return fmt.Errorf("without feedback: %v: the mean over the passes is off by %v", without, d)
			}
			return nil
		})
	}
}

// If a bucket is not finite, even in a gradient that is not compressed, its error feedback does not
// change.
func TestPowerSGDNotFiniteKeepsErrorFeedback(t *testing.T) {
	params := append(slices.Clone(single), reducer.Param{Name: "b", Shape: device.Shape{7}, DType: device.Float32})
	onRanks(t, 2, false, func(pg *comm.ProcessGroup) error {
		h := must.New(commhook.NewPowerSGD(&commhook.PowerSGDOptions{StartAfter: -1}))
		e := must.New(newDriver(pg, params, h, true))
		if n := len(e.r.Stats().Buckets); n != 1 {
			return fmt.Errorf("%d buckets, want one of both", n)
		}
		unsent := func(pass, bad int) ([]float32, error) {
			grads := random(params, pg.Rank(), pass)
			if bad >= 0 && pg.Rank() == 1 {
				grads[bad][5] = math.NaN()
			}
			if _, err := e.pass(grads); err != nil {
				return nil, err
			}
			s, err := h.State(t.Context())
			return slices.Clone(device.Elements[float32](s["w.unsent"])), err
		}
		for pass, bad := range []int{0, 1} {
			before := must.New(unsent(2*pass, -1))
			after := must.New(unsent(2*pass+1, bad))
			if len(before) != 40*30 || !slices.Equal(before, after) {
				return fmt.Errorf("a pass with a NaN in %v makes %v of what was not sent, %v", params[bad], after, before)
			}
		}
		return nil
	})
}

// In every pass large factors are reduced after the event that follows their computation in that
// pass.
func TestPowerSGDHeadStart(t *testing.T) {
	testkit.Long(t)
	onRanks(t, 2, true, func(pg *comm.ProcessGroup) error {
		const v, n, m, rank = 1 << 20, 64, 66_000, 16
		flat := must.New(pg.Alloc(4 * (v + n*m)))
		afters := map[string]device.Event{}
		h, err := commhook.NewPowerSGD(&commhook.PowerSGDOptions{Rank: rank, StartAfter: -1, Hook: commhook.Func(func(b reducer.GradBucket) (device.Tensor, reducer.Reduction) {
			afters[b.Name] = b.After
			return b.Flat, commhook.Noop().Reduce(b)
		})})
		if err != nil {
			return err
		}
		all := device.NewTensor(flat, device.Float32, v+n*m)
		b := reducer.GradBucket{
			Name: "bucket 0", Group: pg, Op: comm.Sum, Flat: all,
			Params: []reducer.Param{{Name: "v", Shape: device.Shape{v}, DType: device.Float32}, {Name: "w", Shape: device.Shape{n, m}, DType: device.Float32}},
			Grads:  []device.Tensor{all.Range(0, v), all.Range(v, all.Len()).Reshape(n, m)},
		}
		for pass := range 2 {
			started := pg.Device().Compute().Mark()
			clear(afters)
			if err := h.Reduce(b).Wait(t.Context()); err != nil {
				return err
			}
			if len(afters) != 2 || afters["P of bucket 0"] == nil {
				return fmt.Errorf("pass %d: reduced are %v, want P with an event, and Q", pass, afters)
			}
			for _, name := range []string{"Q of bucket 0", "P of bucket 0"} {
				after := afters[name]
				if after == nil { // after everything that is enqueued
					continue
				}
				if err := after.Sync(t.Context()); err != nil {
					return err
				}
				if reached, err := started.Done(); !reached || err != nil {
					return fmt.Errorf("pass %d: %s is said to be ready before the pass began: %v", pass, name, err)
				}
			}
		}
		return nil
	})
}

// Without a warm start each pass uses new factors, equal on all ranks.
func TestPowerSGDWithoutWarmStart(t *testing.T) {
	onRanks(t, 2, false, func(pg *comm.ProcessGroup) error {
		e := must.New(newDriver(pg, single, powerSGD(commhook.PowerSGDOptions{StartAfter: -1, NoWarmStart: true, NoErrorFeedback: true}), true))
		var before []float64
		for pass := range 3 {
			got := must.New(e.pass(random(single, pg.Rank(), 0)))
			if before != nil && off(got[0], before) < 0.1 {
				return fmt.Errorf("pass %d gives what the one before gave", pass)
			}
			before = got[0]
			if err := agree(pg, "the gradients", []byte(fmt.Sprint(got[0]))); err != nil {
				return err
			}
		}
		return nil
	})
}

// A parameter whose gradient was zero is compressed again once it is not.
func TestPowerSGDAfterZeroGradient(t *testing.T) {
	onRanks(t, 2, false, func(pg *comm.ProcessGroup) error {
		e := must.New(newDriver(pg, single, powerSGD(commhook.PowerSGDOptions{Rank: 2, StartAfter: -1}), true))
		want := mean(single, 2, func(rank int) [][]float64 { return [][]float64{outer(rank)} })
		for pass := range 6 {
			grad := make([]float64, 40*30)
			if pass > 2 {
				grad = outer(pg.Rank())
			}
			got := must.New(e.pass([][]float64{grad}))
			if pass <= 2 {
				want := make([]float64, len(grad))
				if d := off(got[0], want); d != 0 {
					return fmt.Errorf("pass %d: off by %v", pass, d)
				}
			} else if d := off(got[0], want[0]); !(d <= 1e-4) {
				return fmt.Errorf("pass %d: off by %v", pass, d)
			}
		}
		return nil
	})
}

// A job that continues from a saved state computes the same as a job that was never stopped,
// whether the state was saved before or after the buckets were rebuilt.
func TestPowerSGDState(t *testing.T) {
	const passes = 8
	o := commhook.PowerSGDOptions{Rank: 2, StartAfter: -1, MinCompression: 1}
	for _, stop := range []int{1, 2, 5} {
		onRanks(t, 2, stop == 2, func(pg *comm.ProcessGroup) error {
			h := must.New(commhook.NewPowerSGD(&o))
			e := must.New(newDriver(pg, matrices(device.Float32), h, true))
			var state map[string]device.Tensor
			var want [][][]float64
			for pass := range passes {
				if pass == stop {
					state = must.New(h.State(context.Background()))
				}
				got := must.New(e.pass(random(e.params, pg.Rank(), pass)))
				want = append(want, got)
			}
			again := must.New(commhook.NewPowerSGD(&o))
			if err := again.LoadState(state); err != nil {
				return err
			}
			if state = must.New(again.State(context.Background())); len(state) != 1+2*2 {
				return fmt.Errorf("a state of %d that was loaded and not used", len(state))
			}
			e = must.New(newDriver(pg, matrices(device.Float32), again, true))
			for pass := stop; pass < passes; pass++ {
				got := must.New(e.pass(random(e.params, pg.Rank(), pass)))
				for i := range got {
					if d := off(got[i], want[pass][i]); d != 0 {
						return fmt.Errorf("stopped before pass %d: in pass %d the gradient %v is off by %v", stop, pass, e.params[i], d)
					}
				}
			}
			return nil
		})
	}
}

// If ranks start a pass with different factors, the resulting gradients are still equal on all
// ranks.
func TestPowerSGDFactorsThatDiffer(t *testing.T) {
	onRanks(t, 2, false, func(pg *comm.ProcessGroup) error {
		h := must.New(commhook.NewPowerSGD(&commhook.PowerSGDOptions{StartAfter: -1}))
		q := make([]float32, 30)
		q[pg.Rank()] = 1
		state := map[string]device.Tensor{"passes": device.HostTensor([]int64{3}, device.Int64), "w.q": device.HostTensor(q, device.Float32, 1, 30)}
		if err := h.LoadState(state); err != nil {
			return err
		}
		e := must.New(newDriver(pg, single, h, true))
		want := mean(single, 2, func(rank int) [][]float64 { return [][]float64{outer(rank)} })
		for range 2 {
			got := must.New(e.pass([][]float64{outer(pg.Rank())}))
			if d := off(got[0], want[0]); !(d <= 1e-4) {
				return fmt.Errorf("off by %v", d)
			}
			if err := agree(pg, "the gradients", []byte(fmt.Sprint(got[0]))); err != nil {
				return err
			}
		}
		return nil
	})
}

// If a state has another shape than its parameter, the error names both.
func TestPowerSGDStateThatDoesNotFit(t *testing.T) {
	onRanks(t, 2, false, func(pg *comm.ProcessGroup) error {
		h := must.New(commhook.NewPowerSGD(&commhook.PowerSGDOptions{StartAfter: -1}))
		if err := h.LoadState(map[string]device.Tensor{
			"passes": device.HostTensor([]int64{3}, device.Int64), "w.q": device.HostTensor(make([]float32, 31), device.Float32, 1, 31),
		}); err != nil {
			return err
		}
		e, err := newDriver(pg, single, h, true)
		if err == nil { // otherwise this rank is slower and gets the error here
			_, err = e.pass(random(single, pg.Rank(), 0))
		}
		if err == nil || !strings.Contains(err.Error(), "w.q is float32[1 31], want float32[1 30]") {
			return fmt.Errorf("got %v", err)
		}
		return nil
	})
}
