package buckets

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/profile"
)

// halves is a hook that multiplies each gradient by 0.5, writes the products to the hook's own memory and
// reduces them. The reduction's Wait doubles the averages and copies them back. So the gradients are right
// only if the reducer calls Wait.
type halves struct {
	dev  device.Device
	seen []reducer.GradBucket
}

type halved struct {
	*comm.Work
	dev           device.Device
	flat, scratch device.Tensor
}

func (h *halves) Reduce(b reducer.GradBucket) reducer.Reduction {
	buf, err := h.dev.Alloc(b.Flat.Bytes())
	if err != nil {
		panic(err)
	}
	scratch := device.NewTensor(buf, b.Flat.DType, b.Flat.Shape...)
	if err := h.dev.Kernels().Axpby(h.dev.Compute(), scratch, device.Accum{Alpha: 0.5}, b.Flat); err != nil {
		panic(err)
	}
	h.seen = append(h.seen, b)
	return &halved{b.Group.With(&comm.CallOptions{Name: "half of " + b.Name}).AllReduce(scratch, b.Op), h.dev, b.Flat, scratch}
}

func (h *halved) Wait(ctx context.Context) error {
	if err := h.Work.Wait(ctx); err != nil {
		return err
	}
	defer h.dev.Free(h.scratch.Buf)
	return h.dev.Kernels().Axpby(h.dev.Compute(), h.flat, device.Accum{Alpha: 2}, h.scratch)
}

// After a pass, the gradients are the results of the hook's reductions. The hook gets each bucket with its
// parameters and gradients, and learns whether the buckets were rebuilt.
func TestCommHookFuturePassing(t *testing.T) {
	for _, prescaled := range []bool{false, true} {
		for _, unused := range []Unused{UnusedMissing, UnusedFound, UnusedFixed} {
			t.Run(fmt.Sprintf("prescaled: %v, unused: %v", prescaled, unused), func(t *testing.T) {
				commtest.OnDevices(t, lagging(2), nil, func(pg *comm.ProcessGroup) error {
					h := &halves{dev: pg.Device()}
					r := must.New(New(t.Context(), pg, params(), &Options{Prescaled: prescaled, BucketCapMB: 1e-5, Hook: h, Unused: unused}))
					trace := profile.Of(pg.Device())
					trace.Start()
					e, reductions, skipped := engine{pg, r}, 0, -1
					if unused != UnusedMissing {
						skipped = 2 * pg.Rank() // rank 0 lacks a, rank 1 lacks c
					}
					for pass := range 3 {
						r.zeroAll()
						h.seen = nil
						r.Begin(true, func(i int) bool { return i != skipped })
						for _, i := range []int{1, 3, 0, 2} {
							if i != skipped {
								e.write(i, float64(4+8*pg.Rank()))
							}
						}
						if err := errors.Join(r.Finish(t.Context(), nil), r.Err()); err != nil {
							return err
						}
						for i := range 4 {
							want := 8.
							switch {
							case unused != UnusedMissing && i == 0:
								want = 6 // half of rank 1's gradient, because rank 0 has none
							case unused != UnusedMissing && i == 2:
								want = 2
							}
							if got, err := e.all(i); err != nil || got != want || !isWritten(r, i) {
								return fmt.Errorf("pass %d: gradient %d is %v, want %v; %v", pass, i, got, want, err)
							}
						}
						n := len(r.describeBuckets())
						if reductions += n; len(h.seen) != n {
							return fmt.Errorf("pass %d: %d buckets were given to the hook, want %d", pass, len(h.seen), n)
						}
						for k, b := range h.seen {
							if b.Index != k || b.Last != (k == n-1) || b.Rebuilt != (pass > 0 && unused != UnusedFound) || b.Op != r.op {
								return fmt.Errorf("pass %d: bucket %d is %+v", pass, k, b)
							}
							for j, p := range b.Params {
								at := slices.IndexFunc(params(), func(q reducer.Param) bool { return p.Name == q.Name })
								if !reflect.DeepEqual(b.Grads[j], r.Grad(at)) {
									return fmt.Errorf("pass %d: bucket %d has %v in the place of %s", pass, k, b.Grads[j], p.Name)
								}
							}
						}
					}
					if n := trace.Overlap().Reductions; n != reductions {
						return fmt.Errorf("%d reductions in the trace, want %d", n, reductions)
					}
					return nil
				})
			})
		}
	}
}

// noop is a hook that reduces nothing: every rank keeps its own gradients.
type noop struct{}

func (n noop) Reduce(reducer.GradBucket) reducer.Reduction { return n }
func (noop) Wait(context.Context) error                    { return nil }
func (noop) Sync(context.Context) error                    { return nil }

// The reduction of a large bucket, except the last bucket, waits for an event with a time, which gives it a
// head start: see reducer.GradBucket.Ready. The reductions of all other buckets do not wait for such an event.
func TestLargeBucketsGetAHeadStart(t *testing.T) {
	half := device.Shape{largeBucket / 8}
	sizes := []reducer.Param{
		{Name: "last", Shape: device.Shape{largeBucket / 4}, DType: device.Float32}, {Name: "half", Shape: half, DType: device.Float32}, {Name: "other half", Shape: half, DType: device.Float32},
		{Name: "small", Shape: device.Shape{3}, DType: device.Float64},
	}
	commtest.OnDevices(t, lagging(2), nil, func(pg *comm.ProcessGroup) error {
		h := &halves{dev: pg.Device()}
		r := must.New(New(t.Context(), pg, sizes, &Options{BucketCapMB: 4, Hook: h}))
		e := engine{pg, r}
		r.Begin(true, nil)
		for i := len(sizes) - 1; i >= 0; i-- {
			e.write(i, 1)
		}
		if err := errors.Join(r.Finish(t.Context(), nil), r.Err()); err != nil {
			return err
		}
		var timed []string
		for _, b := range h.seen {
			if b.After == nil { // Finish launched this bucket
				continue
			}
			if err := b.After.Sync(t.Context()); err != nil {
				return err
			}
			if !b.After.Time().IsZero() {
				timed = append(timed, b.Params[0].Name)
			}
		}
		if want := []string{"other half"}; len(h.seen) != 3 || !slices.Equal(timed, want) {
			return fmt.Errorf("of %d buckets those of %q have an event with a time, want %q of 3", len(h.seen), timed, want)
		}
		return nil
	})
}

// If a gradient is missing on one rank, all ranks get a MissingGradientError for this pass, whatever the
// hook does.
func TestFlagsDoNotDependOnTheHook(t *testing.T) {
	onRanks(t, func(pg *comm.ProcessGroup) error {
		r := must.New(New(t.Context(), pg, params(), &Options{Hook: noop{}}))
		e := engine{pg, r}
		for pass := range 4 {
			r.Begin(true, nil)
			for _, i := range reversed(4) {
				r.State(i).Zero()
				if pass%2 == 0 || pg.Rank() == 0 || i != 1 {
					e.write(i, float64(pg.Rank()))
				}
			}
			err := r.Finish(t.Context(), nil)
			flagged := slices.ContainsFunc(r.Flags().Buf.Host(), func(b byte) bool { return b != 0 })
			if missing := (*reducer.MissingGradientError)(nil); errors.As(err, &missing) != (pass%2 == 1) || flagged != (pass%2 == 1) {
				return fmt.Errorf("pass %d: %v; flags raised: %v", pass, err, flagged)
			}
			if got, gerr := e.all(0); pass%2 == 0 && (err != nil || gerr != nil || got != float64(pg.Rank())) {
				return fmt.Errorf("pass %d: %v, %v, %v", pass, err, got, gerr)
			}
		}
		return nil
	})
}

// If a hook fails, on all ranks or on one, the reducer aborts the group. So no rank trains alone, and no
// rank waits for another rank.
func TestFailingHookAbortsGroup(t *testing.T) {
	failed := errors.New("no hook today")
	for _, everywhere := range []bool{true, false} {
		onRanks(t, func(pg *comm.ProcessGroup) error {
			var h late
			if everywhere || pg.Rank() == 1 {
				h.err = failed
			}
			r := must.New(New(t.Context(), pg, params(), &Options{Hook: h}))
			e := engine{pg, r}
			err := e.pass(true, 1)
			if err == nil && h.err != nil || err != nil && !strings.Contains(err.Error(), failed.Error()) {
				return fmt.Errorf("got %v", err)
			}
			if err != nil && (r.Err() != err || isWritten(r, 0)) {
				return fmt.Errorf("the outcome was %v and is %v", err, r.Err())
			}
			if err := pg.Barrier().Sync(t.Context()); err == nil || !strings.Contains(err.Error(), failed.Error()) {
				return fmt.Errorf("the next call: %v", err)
			}
			return nil
		})
	}
}

// late is a hook that all-reduces each bucket. Wait of each reduction ends the all-reduce and returns err.
type late struct{ err error }

func (l late) Reduce(b reducer.GradBucket) reducer.Reduction {
	return &lateReduction{plain{}.Reduce(b), l.err}
}

type lateReduction struct {
	reducer.Reduction
	err error
}

func (l *lateReduction) Wait(ctx context.Context) error {
	return errors.Join(l.Reduction.Wait(ctx), l.err)
}
