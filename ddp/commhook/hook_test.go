package commhook_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/commhook"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/profile"
)

// hookCase is a hook that averages over all ranks. tolerance is the allowed error of a gradient,
// relative to the largest.
type hookCase struct {
	name      string
	tolerance float64
	make      func() reducer.Hook
}

// every lists each hook, and some combinations.
var every = []hookCase{
	{"AllReduce", 1e-6, commhook.AllReduce},
	{"FP16", 0x1p-10, func() reducer.Hook { return commhook.FP16(nil) }},
	{"BF16", 0x1p-7, func() reducer.Hook { return commhook.BF16(nil) }},
	{"Int8", 0.04, commhook.Int8},
	{"FP16 of FP16", 0x1p-10, func() reducer.Hook { return commhook.FP16(commhook.FP16(nil)) }},
	{"BF16 of Int8", 0.05, func() reducer.Hook { return commhook.BF16(commhook.Int8()) }},
	{"BF16 of post-localSGD", 0x1p-7, func() reducer.Hook { return commhook.BF16(commhook.PostLocalSGD(nil)) }},
	// With the full rank of the matrices nothing is lost.
	{"PowerSGD", 1e-5, func() reducer.Hook { return powerSGD(full) }},
	{"PowerSGD in BF16", 0x1p-6, func() reducer.Hook {
		o := full
		o.Hook = commhook.BF16(nil)
		return powerSGD(o)
	}},
	{"FP16 of PowerSGD", 0x1p-9, func() reducer.Hook { return commhook.FP16(powerSGD(full)) }},
	{"Func", 1e-6, func() reducer.Hook {
		return commhook.Func(func(b reducer.GradBucket) (device.Tensor, reducer.Reduction) {
			return b.Flat, b.Group.AllReduce(b.Flat, b.Op)
		})
	}},
}

func eachHook(t *testing.T, f func(t *testing.T, c hookCase)) {
	for _, c := range every {
		t.Run(c.name, func(t *testing.T) { f(t, c) })
	}
}

// full are options with which the factors have the full rank of the matrices.
var full = commhook.PowerSGDOptions{Rank: 100, StartAfter: -1, MinCompression: 0x1p-10}

// Every hook computes the averages of the ranks' gradients, with and without prescaled gradients,
// for all types, before and after the buckets are rebuilt. Traces show its reductions.
func TestDefaultDDPCommHooks(t *testing.T) {
	eachHook(t, func(t *testing.T, c hookCase) {
		for _, ranks := range commtest.Sizes(t, 1, 2, 3) {
			prescaled, isLagging, dt := ranks != 3, ranks > 1, device.Float32
			if ranks == 2 {
				dt = device.Float64
			}
			t.Run(fmt.Sprintf("%v, %d ranks", dt, ranks), func(t *testing.T) {
				onRanks(t, ranks, isLagging, func(pg *comm.ProcessGroup) error {
					e := must.New(newDriver(pg, matrices(dt), c.make(), prescaled))
					trace := profile.Of(pg.Device())
					trace.Start()
					const passes = 4
					for pass := range passes {
						got, err := e.pass(random(e.params, pg.Rank(), pass))
						if err != nil {
							return fmt.Errorf("pass %d: %w", pass, err)
						}
						want := mean(e.params, ranks, func(rank int) [][]float64 { return random(e.params, rank, pass) })
						for i, p := range e.params {
							if d := off(got[i], want[i]); !(d <= c.tolerance) {
								return fmt.Errorf("pass %d: the gradient %v is off by %v, want at most %v", pass, p, d, c.tolerance)
							}
						}
					}
					if e.r.Stats().Rebuilt == nil {
						return fmt.Errorf("the buckets were not rebuilt")
					}
					if n := trace.Overlap().Reductions; n != passes*len(e.r.Stats().Buckets) {
						return fmt.Errorf("%d reductions in the trace, want %d", n, passes*len(e.r.Stats().Buckets))
					}
					return nil
				})
			})
		}
	})
}

// With every hook a gradient that is not finite on one rank is not finite on all ranks, a gradient that one rank lacks is
// the error of all ranks, and neither affects the next pass.
func TestBadGradients(t *testing.T) {
	bad := map[int]float64{2: math.NaN(), 4: math.Inf(1)} // by pass
	missing := map[int]int{1: 1, 3: 0, 5: 2}              // the gradient that rank 1 lacks, by pass
	const last = 6
	eachHook(t, func(t *testing.T, c hookCase) {
		onBoth(t, commtest.Sizes(t, 3)[0], func(pg *comm.ProcessGroup) error {
			e := must.New(newDriver(pg, matrices(device.Float32), c.make(), true))
			for pass := range last + 1 {
				grads := random(e.params, pg.Rank(), pass)
				v, isInvalid := bad[pass]
				lacks, isMissing := missing[pass]
				if pg.Rank() == 1 && isInvalid {
					grads[0][77], grads[1][5] = v, v
				}
				if pg.Rank() == 1 && isMissing {
					grads[lacks] = nil
				}
				got, err := e.pass(grads)
				if errors.As(err, new(*reducer.MissingGradientError)) != isMissing || !isMissing && err != nil {
					return fmt.Errorf("pass %d: %v", pass, err)
				}
				for i := range got {
					finite := !slices.ContainsFunc(got[i], func(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) })
					if isInvalid && i < 2 && finite || !isInvalid && !finite {
						return fmt.Errorf("pass %d: the gradient %v is finite: %v", pass, e.params[i], finite)
					}
				}
				if pass != last {
					continue
				}
				want := mean(e.params, pg.Size(), func(rank int) [][]float64 { return random(e.params, rank, last) })
				for i, p := range e.params {
					if d := off(got[i], want[i]); !(d <= c.tolerance) {
						return fmt.Errorf("the gradient %v of the last pass is off by %v, want at most %v", p, d, c.tolerance)
					}
				}
			}
			return nil
		})
	})
}

// Float16 does not overflow if the average does not, because gradients are divided before they are
// summed.
func TestFP16DividesFirst(t *testing.T) {
	for _, prescaled := range []bool{false, true} {
		onRanks(t, commtest.Sizes(t, 3)[0], false, func(pg *comm.ProcessGroup) error {
			e := must.New(newDriver(pg, []reducer.Param{{Name: "w", Shape: device.Shape{3}, DType: device.Float32}}, commhook.FP16(nil), prescaled))
			got, err := e.pass([][]float64{{60000, -60000, 1e-3}})
			if err != nil || off(got[0], []float64{60000, -60000, 1e-3}) > 0x1p-10 {
				return fmt.Errorf("%v, %v", got, err)
			}
			return nil
		})
	}
}

// The error of a quantized gradient is within the bound that the scale of its block implies.
func TestInt8Bound(t *testing.T) {
	for _, ranks := range commtest.Sizes(t, 2, 3, 4) {
		onRanks(t, ranks, false, func(pg *comm.ProcessGroup) error {
			const n = 3000
			e := must.New(newDriver(pg, []reducer.Param{{Name: "w", Shape: device.Shape{n}, DType: device.Float32}}, commhook.Int8(), true))
			grads := func(rank int) [][]float64 {
				g := random(e.params, rank, 0)
				for j := range g[0] {
					g[0][j] *= math.Exp2(float64(j / kernels.QuantBlock)) // each block has another scale
				}
				return g
			}
			got := must.New(e.pass(grads(pg.Rank())))
			want := mean(e.params, ranks, grads)
			for lo := 0; lo < n; lo += kernels.QuantBlock {
				hi := min(lo+kernels.QuantBlock, n)
				largest := func(v []float64) (m float64) {
					for _, x := range v[lo:hi] {
						m = max(m, math.Abs(x))
					}
					return m
				}
				bound := 0.
				for rank := range ranks {
					bound += largest(grads(rank)[0]) / float64(ranks) / 254
				}
				if ranks > 2 {
					bound += (largest(want[0]) + bound) / 254 // the sum is rounded too
				}
				for j := lo; j < hi; j++ {
					if d := math.Abs(got[0][j] - want[0][j]); d > bound*(1+1e-5) {
						return fmt.Errorf("number %d is off by %v, want at most %v", j, d, bound)
					}
				}
			}
			return nil
		})
	}
}

// Noop leaves each rank its own gradients, divided by the number of ranks.
func TestNoop(t *testing.T) {
	onRanks(t, 2, true, func(pg *comm.ProcessGroup) error {
		e := must.New(newDriver(pg, matrices(device.Float32), commhook.Noop(), false))
		grads := random(e.params, pg.Rank(), 0)
		got := must.New(e.pass(grads))
		for i := range got {
			for j := range got[i] {
				if math.Abs(2*got[i][j]-grads[i][j]) > 1e-6 {
					return fmt.Errorf("gradient %d has %v, want a half of %v", i, got[i][j], grads[i][j])
				}
			}
		}
		return nil
	})
}

// If a hook returns another number of elements than the bucket has, the error has both numbers. For a bucket of a
// subgroup it names the rank by its number in the model's group.
func TestHookResultOfWrongSize(t *testing.T) {
	onRanks(t, 2, false, func(pg *comm.ProcessGroup) error {
		short := commhook.Func(func(b reducer.GradBucket) (device.Tensor, reducer.Reduction) {
			return b.Flat.Range(0, b.Flat.Len()-7), commhook.AllReduce().Reduce(b)
		})
		alone := must.New(pg.Split(t.Context(), pg.Rank(), 0))
		b := reducer.GradBucket{Name: "bucket 0", Rank: pg.Rank(), Group: alone, Op: comm.Sum, Flat: device.HostTensor(make([]float32, 8), device.Float32)}
		err := short.Reduce(b).Wait(t.Context())
		if want := fmt.Sprintf("rank %d: the hook returned 1 elements", pg.Rank()); err == nil || !strings.Contains(err.Error(), want) {
			return fmt.Errorf("rank %d: got %v", pg.Rank(), err)
		}
		e := must.New(newDriver(pg, matrices(device.Float32), short, true))
		_, err = e.pass(random(e.params, pg.Rank(), 0))
		if err == nil || !strings.Contains(err.Error(), "the hook returned 889 elements for bucket 0, which has 896") {
			return fmt.Errorf("got %v", err)
		}
		return nil
	})
}

// If the options of the hook differ between ranks, making the model fails on all ranks.
func TestHookOptionsThatDiffer(t *testing.T) {
	onRanks(t, 2, false, func(pg *comm.ProcessGroup) error {
		_, err := newDriver(pg, matrices(device.Float32), commhook.BF16(powerSGD(commhook.PowerSGDOptions{Rank: 1 + pg.Rank()})), true)
		mismatch := (*reducer.ModelMismatchError)(nil)
		if !errors.As(err, &mismatch) || !strings.Contains(err.Error(), "PowerSGD of rank 2") || !strings.Contains(err.Error(), "PowerSGD of rank 1") {
			return fmt.Errorf("got %v", err)
		}
		return nil
	})
}

// After the first passes a hook allocates nothing but its calls.
func TestSteadyState(t *testing.T) {
	const ranks, warm, passes, most = 3, 3, 20, 24 << 10
	eachHook(t, func(t *testing.T, c hookCase) {
		commtest.OnGoroutines(t, ranks, nil, func(pg *comm.ProcessGroup) error {
			params := []reducer.Param{{Name: "w", Shape: device.Shape{160, 160}, DType: device.Float32}}
			hook := c.make()
			if strings.Contains(c.name, "PowerSGD") {
				hook = powerSGD(commhook.PowerSGDOptions{Rank: 2, StartAfter: -1})
			}
			e := must.New(newDriver(pg, params, hook, true))
			var before, after runtime.MemStats
			for pass := range warm + passes {
				if pass == warm {
					if err := pg.Barrier().Sync(context.Background()); err != nil {
						return err
					}
					runtime.ReadMemStats(&before)
				}
				e.r.State(0).Zero()
				e.r.Begin(true, nil)
				e.r.State(0).Write()
				e.r.Ready(0, pg.Device().Compute().Mark())
				if err := e.r.Finish(context.Background(), nil); err != nil {
					return err
				}
			}
			runtime.ReadMemStats(&after)
			if heap := (after.TotalAlloc - before.TotalAlloc) / passes / ranks; heap > most {
				return fmt.Errorf("a pass allocates %d bytes of Go's heap, want at most %d", heap, most)
			}
			return nil
		})
	})
}

// Starting a reduction does not wait for other ranks: rank 1 begins its pass after rank 0 has
// started all of its reductions.
func TestReduceDoesNotWait(t *testing.T) {
	commtest.OutsideJobs(t) // the ranks share a channel
	eachHook(t, func(t *testing.T, c hookCase) {
		through := make(chan struct{})
		onRanks(t, 3, true, func(pg *comm.ProcessGroup) (err error) {
			e := must.New(newDriver(pg, matrices(device.Float32), c.make(), true))
			if pg.Rank() == 1 {
				<-through
			}
			e.r.Begin(true, nil)
			for _, i := range []int{4, 3, 2, 1, 0} {
				e.r.State(i).Write()
				e.r.Ready(i, pg.Device().Compute().Mark())
			}
			if pg.Rank() == 0 {
				if len(e.r.Stats().Buckets) < 2 {
					err = errors.New("the only bucket is reduced where the pass ends")
				}
				close(through)
			}
			return errors.Join(err, e.r.Finish(context.Background(), nil), e.r.Err())
		})
	})
}

// If other buckets follow a large bucket, the reduction of the hook's data for it starts after an
// event with a time, as the reduction of the bucket itself would.
func TestHeadStart(t *testing.T) {
	const n = 3 << 20 // elements of 4 and of 2 bytes
	for _, ranks := range commtest.Sizes(t, 2) {
		onRanks(t, ranks, true, func(pg *comm.ProcessGroup) error {
			for _, last := range []bool{false, true} {
				buf := must.New(pg.Alloc(4 * n))
				flat := device.NewTensor(buf, device.Float32, n)
				var after device.Event
				inner := commhook.Func(func(b reducer.GradBucket) (device.Tensor, reducer.Reduction) {
					after = b.After
					return b.Flat, commhook.Noop().Reduce(b)
				})
				b := reducer.GradBucket{
					Last: last, Name: "bucket 0", Group: pg, Op: comm.Sum, Flat: flat,
					Params: []reducer.Param{{Name: "w", Shape: flat.Shape, DType: flat.DType}}, Grads: []device.Tensor{flat},
				}
				if err := commhook.BF16(inner).Reduce(b).Wait(t.Context()); err != nil {
					return err
				}
				if (after == nil) != last {
					return fmt.Errorf("last %v: the event is %v", last, after)
				}
				if last {
					continue
				}
				if err := after.Sync(t.Context()); err != nil {
					return err
				}
				if after.Time().IsZero() {
					return errors.New("the event has no time")
				}
			}
			return nil
		})
	}
}
