package buckets

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/gradsink"
	"github.com/goddp/goddp/internal/kernels"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/devicetest"
	"github.com/goddp/goddp/internal/testkit/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The tests that call onRanks also run with each rank in a process of its own.
func TestOnProcesses(t *testing.T) { commtest.Processes(t, 2, "GODDP_DEVICE=cpu") }

// onRanks runs f with several numbers of ranks. The function f must work with any number of ranks.
func onRanks(t *testing.T, f func(pg *comm.ProcessGroup) error) {
	for _, n := range commtest.Sizes(t, 2, 3, 4) {
		commtest.OnRanks(t, n, nil, f)
	}
}

// engine stands for an autograd engine. It writes constant gradients.
type engine struct {
	pg *comm.ProcessGroup
	r  *Reducer
}

// write sets all elements of gradient i to v if the gradient was zeroed, and otherwise adds v to them. It
// multiplies the result by the reducer's Scale, and calls Ready.
func (e engine) write(i int, v float64) {
	e.r.Settle(i)
	d, dst, acc := e.pg.Device(), e.r.Grad(i), device.Accum{Alpha: e.r.Scale(), Beta: e.r.Scale()}
	if e.r.State(i).Write() {
		acc.Beta = 0
	}
	buf, err := d.Alloc(dst.Bytes())
	if err != nil {
		panic(err)
	}
	defer d.Free(buf)
	x := device.NewTensor(buf, dst.DType, dst.Shape...)
	if err := errors.Join(d.Kernels().Fill(d.Compute(), x, v), d.Kernels().Axpby(d.Compute(), dst, acc, x)); err != nil {
		panic(err)
	}
	e.r.Ready(i, d.Compute().Mark())
}

// isWritten reports whether gradient i has a value, as autograd's Variable.Grad asks.
func isWritten(r *Reducer, i int) bool {
	r.Grad(i)
	return r.State(i).Content == gradsink.Written
}

// pass makes a pass in which all gradients but the given ones are v, and returns the error of Finish.
func (e engine) pass(sync bool, v float64, lacks ...int) error {
	e.r.Begin(sync, nil)
	for _, i := range reversed(4) {
		if !slices.Contains(lacks, i) {
			e.write(i, v)
		}
	}
	return e.r.Finish(context.Background(), nil)
}

// The method all returns the value of gradient i, which must be the same in all elements.
func (e engine) all(i int) (float64, error) {
	var vs []float64
	if t := e.r.Grad(i); t.DType == device.Float32 {
		for _, v := range device.Elements[float32](t) {
			vs = append(vs, float64(v))
		}
	} else {
		vs = device.Elements[float64](t)
	}
	if slices.Min(vs) != slices.Max(vs) {
		return 0, fmt.Errorf("gradient %d is not uniform: %v", i, vs)
	}
	return vs[0], nil
}

func params() []reducer.Param {
	return []reducer.Param{
		{Name: "a", Shape: device.Shape{3, 5}, DType: device.Float32}, {Name: "b", Shape: device.Shape{}, DType: device.Float64},
		{Name: "c", Shape: device.Shape{100}, DType: device.Float32}, {Name: "d", Shape: device.Shape{7}, DType: device.Float64},
	}
}

// The reducer averages gradients of two types in several buckets, which become ready in an unexpected
// order. Either the reducer or the engine (Options.Prescaled) divides by the number of ranks.
func TestAverages(t *testing.T) {
	for _, prescaled := range []bool{false, true} {
		for _, mb := range []float64{0, 1e-5} {
			t.Run(fmt.Sprintf("prescaled %v, cap %v", prescaled, mb), func(t *testing.T) {
				onRanks(t, func(pg *comm.ProcessGroup) error {
					r := must.New(New(t.Context(), pg, params(), &Options{Prescaled: prescaled, BucketCapMB: mb}))
					e := engine{pg, r}
					for pass := range 4 {
						r.Begin(true, nil)
						for _, i := range []int{2, 0, 3, 1} {
							r.State(i).Zero()
							e.write(i, float64(pass+10*i+pg.Rank()*3))
						}
						if err := r.Finish(t.Context(), nil); err != nil {
							return err
						}
						for i := range 4 {
							got := must.New(e.all(i))
							if want := float64(pass+10*i) + 3*float64(pg.Size()-1)/2; got-want > 1e-5 || want-got > 1e-5 {
								return fmt.Errorf("pass %d: gradient %d is %v, want %v", pass, i, got, want)
							}
						}
					}
					return nil
				})
			})
		}
	}
}

// If two ranks lack different gradients in the same pass, every rank gets an error that names both
// gradients.
func TestSeveralRanksLackGradients(t *testing.T) {
	commtest.OnRanks(t, 3, nil, func(pg *comm.ProcessGroup) error {
		r := must.New(New(t.Context(), pg, params(), &Options{Prescaled: true}))
		e := engine{pg, r}
		for pass := range 12 {
			lacks := map[int][]int{0: {0, 2}, 2: {pass % 2}}[pg.Rank()]
			if pass%3 == 0 {
				lacks = nil
			}
			err := e.pass(true, 1, lacks...)
			if (r.Err() == nil) != (err == nil) {
				return fmt.Errorf("pass %d: Finish returned %v, Err is %v", pass, err, r.Err())
			}
			if pass%3 == 0 {
				if err != nil {
					return fmt.Errorf("pass %d: %w", pass, err)
				}
				continue
			}
			var m *reducer.MissingGradientError
			if !errors.As(err, &m) {
				return fmt.Errorf("pass %d: %v", pass, err)
			}
			for _, want := range []string{`parameters ["c" "a"] on rank 0`, fmt.Sprintf("parameter %q on rank 2", []string{"a", "b"}[pass%2])} {
				if !strings.Contains(err.Error(), want) {
					return fmt.Errorf("pass %d: %q lacks %q", pass, err, want)
				}
			}
		}
		return nil
	})
}

func TestTwoReducersOnOneGroup(t *testing.T) {
	commtest.OnRanks(t, 2, nil, func(pg *comm.ProcessGroup) error {
		var es []engine
		for range 2 {
			r := must.New(New(t.Context(), pg, params(), nil))
			es = append(es, engine{pg, r})
		}
		// On rank 1, the two reducers lack different gradients in their first passes. The error of each
		// reducer names only the gradient that this reducer lacks.
		for k, e := range es {
			var lacks []int
			if pg.Rank() == 1 {
				lacks = []int{3 - k}
			}
			err := e.pass(true, float64(k), lacks...)
			if m := (*reducer.MissingGradientError)(nil); !errors.As(err, &m) || m.Missing[0].Rank != 1 || !slices.Equal(m.Missing[0].Params, []string{[]string{"d", "c"}[k]}) {
				return fmt.Errorf("reducer %d: got %v", k, err)
			}
		}
		// The passes of both reducers overlap. Each Finish launches the last bucket of its reducer.
		for k, e := range es {
			e.r.Begin(true, nil)
			for i := range 4 {
				e.write(i, float64(k+pg.Rank()))
			}
		}
		for k, e := range es {
			if err := e.r.Finish(t.Context(), nil); err != nil {
				return err
			}
			if got, err := e.all(0); got != float64(k)+0.5 || err != nil {
				return fmt.Errorf("reducer %d: %v, %v", k, got, err)
			}
		}
		return nil
	})
}

// faulty is a device. While *fails is true, its kernel Fill returns an error if it has to fill with zeros.
type faulty struct {
	device.Device
	fails *bool
}

func (d faulty) Kernels() device.Kernels { return faultyKernels{kernels.Of(d.Device), d.fails} }

type faultyKernels struct {
	kernels.Kernels
	fails *bool
}

var errFill = errors.New("no fill today")

func (k faultyKernels) Fill(s device.Stream, dst device.Tensor, v float64) error {
	if *k.fails && v == 0 {
		return errFill
	}
	return k.Kernels.Fill(s, dst, v)
}

// The reducer of one rank fails when it clears the flags of the last pass, which had failed. Every rank
// gets an error, so that no rank applies the step alone.
func TestAFailureOfTheReducerFailsOnAllRanks(t *testing.T) {
	var fails [2]bool
	var devices []device.Device
	for rank := range fails {
		devices = append(devices, faulty{cpu.New(nil), &fails[rank]})
	}
	commtest.OnDevices(t, devices, nil, func(pg *comm.ProcessGroup) error {
		r := must.New(New(t.Context(), pg, params(), nil))
		e, fails := engine{pg, r}, &fails[pg.Rank()]
		for pass := range 3 {
			*fails = pass == 1 && pg.Rank() == 1
			r.Begin(true, nil)
			*fails = false
			for i := range 4 {
				if pass != 0 {
					e.write(i, 1)
				}
			}
			err := r.Finish(t.Context(), nil)
			switch {
			case pass == 1 && (err == nil || !strings.Contains(err.Error(), errFill.Error())):
				return fmt.Errorf("got %v, want rank 1's failure", err)
			case pass == 2 && err != nil:
				return fmt.Errorf("the next pass: %w", err)
			}
		}
		return nil
	})
}

func lagging(n int) []device.Device { return devices(n, true) }

func devices(n int, isLagging bool) (all []device.Device) {
	for range n {
		if all = append(all, cpu.New(nil)); isLagging {
			all[len(all)-1] = devicetest.Lagging(all[len(all)-1])
		}
	}
	return all
}

// If the outcome of a pass is not known at once, Finish does not wait for it. Err waits for the outcome,
// and the Begin of the next pass waits too.
func TestFinishDoesNotWaitForOutcome(t *testing.T) {
	commtest.OnDevices(t, lagging(2), nil, func(pg *comm.ProcessGroup) error {
		r := must.New(New(t.Context(), pg, params(), &Options{BucketCapMB: 1e-5}))
		e, rank := engine{pg, r}, pg.Rank()
		used := pg.Device().Memory().InUse
		// pass makes a pass. If lacks is true, rank 1 lacks the gradient of the last parameter.
		pass := func(lacks bool) error {
			if lacks && rank == 1 {
				return e.pass(true, 1, 3)
			}
			return e.pass(true, 1)
		}
		raised := func() bool {
			return slices.ContainsFunc(r.Flags().Buf.Host(), func(b byte) bool { return b != 0 })
		}
		// outcome checks the last pass, whose Finish returned err. atOnce says that Finish must have returned
		// the outcome; lacks says that the outcome must be a MissingGradientError.
		outcome := func(what string, err error, atOnce, lacks bool) error {
			if (err != nil) != atOnce || r.Pending() == atOnce {
				return fmt.Errorf("%s: Finish returned %v, pending: %v", what, err, r.Pending())
			}
			err = r.Err()
			if m := (*reducer.MissingGradientError)(nil); errors.As(err, &m) != lacks || errors.Is(err, device.ErrSkipped) != lacks || (err != nil) != lacks {
				return fmt.Errorf("%s: the outcome is %v", what, err)
			}
			if r.Pending() || raised() != lacks || !isWritten(r, 0) != lacks {
				return fmt.Errorf("%s: pending %v, flags %v, zeroed %v", what, r.Pending(), raised(), !isWritten(r, 0))
			}
			if again := r.Err(); again != err {
				return fmt.Errorf("%s: the outcome was %v and is %v", what, err, again)
			}
			return nil
		}
		err := errors.Join(
			outcome("a good pass", pass(false), false, false),
			outcome("one that lacks a gradient", pass(true), rank == 1, true),
			outcome("the next", pass(false), false, false),
			outcome("and another", pass(false), false, false),
		)
		if err != nil {
			return err
		}
		// Rank 0 does not ask for the outcome of this pass, so its next pass fails with the error, and all
		// ranks get this error.
		lacked := pass(true)
		if (lacked == nil) != (rank == 0) {
			return fmt.Errorf("lacking a gradient: Finish returned %v", lacked)
		}
		err = pass(false)
		if rank == 1 {
			if err != nil {
				return fmt.Errorf("the pass in which rank 0 notices: %w", err)
			}
			err = r.Err()
		}
		if err == nil || !strings.Contains(err.Error(), `parameter "d" on rank 1`) || !raised() {
			return fmt.Errorf("the pass in which rank 0 notices: %v", err)
		}
		if err := outcome("the last", pass(false), false, false); err != nil {
			return err
		}
		if now := pg.Device().Memory().InUse; now != used {
			return fmt.Errorf("%d bytes in use, %d before", now, used)
		}
		return nil
	})
}

// unjoined is a backend whose all-reduces do not block the host in Work.Wait, as on a GPU.
type unjoined struct{ backend.Backend }

func (u unjoined) Start(c *backend.Call) (backend.Task, error) {
	t, err := u.Backend.Start(c)
	if err != nil || c.Kind != backend.AllReduce {
		return t, err
	}
	return unjoinedTask{t}, nil
}

type unjoinedTask struct{ backend.Task }

func (unjoinedTask) Join(context.Context, device.Stream) error { return nil }

// If a reduction fails after Finish, the outcome is the error of this reduction. It does not match
// device.ErrSkipped, because other ranks may have applied the step.
func TestReductionFailureAfterFinish(t *testing.T) {
	opts := commtest.WrapBackend(&comm.Options{ErrorMode: comm.CleanUpOnly}, func(b backend.Backend) backend.Backend { return unjoined{b} })
	cause := errors.New("enough")
	finished := make(chan struct{})
	commtest.OnDevices(t, lagging(2), opts, func(pg *comm.ProcessGroup) error {
		r := must.New(New(t.Context(), pg, params(), nil))
		if pg.Rank() == 1 {
			<-finished
			pg.Abort(cause)
			return nil
		}
		e := engine{pg, r}
		err := e.pass(true, 1)
		close(finished)
		if err != nil || !r.Pending() {
			return fmt.Errorf("Finish returned %v, pending: %v", err, r.Pending())
		}
		err = r.Err()
		if err == nil || errors.Is(err, device.ErrSkipped) || !strings.Contains(err.Error(), "bucket 0") || r.Pending() || r.Err() != err {
			return fmt.Errorf("the outcome is %v, and then %v", err, r.Err())
		}
		return nil
	})
}

// stuck is a device whose compute stream completes only the next stream.left events. Later events never
// complete.
type stuck struct {
	device.Device
	stream *stuckStream
}

func (d stuck) Compute() device.Stream { return d.stream }

type stuckStream struct {
	device.Stream
	left int
}

func (s *stuckStream) Mark() device.Event {
	if s.left--; s.left < 0 {
		return never{}
	}
	return s.Stream.Mark()
}

type never struct{}

func (never) Done() (bool, error) { return false, nil }
func (never) Time() time.Time     { return time.Time{} }
func (never) Sync(ctx context.Context) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// If a device does not finish the reductions within the group's timeout, the reducer aborts the group,
// because the buckets are still in use.
func TestStuckDeviceAbortsGroup(t *testing.T) {
	dev := cpu.New(nil)
	stream := &stuckStream{dev.Compute(), math.MaxInt}
	synctest.Test(t, func(t *testing.T) {
		opts := &comm.Options{ErrorMode: comm.CleanUpOnly, Log: slog.New(slog.DiscardHandler)}
		commtest.OnDevices(t, []device.Device{stuck{dev, stream}}, opts, func(pg *comm.ProcessGroup) error {
			r := must.New(New(t.Context(), pg, params(), nil))
			e := engine{pg, r}
			r.Begin(true, nil)
			for i := range 4 {
				e.write(i, 1)
			}
			stream.left = 2 // two events of Finish must complete: one when it launches the last bucket, one when it broadcasts the order
			if err := r.Finish(t.Context(), nil); err != nil || !r.Pending() {
				return fmt.Errorf("Finish returned %v, pending: %v", err, r.Pending())
			}
			if err := r.Err(); !errors.Is(err, comm.ErrTimeout) || errors.Is(err, device.ErrSkipped) {
				return fmt.Errorf("the outcome is %v", err)
			}
			if err := pg.Barrier().Wait(t.Context()); !errors.Is(err, comm.ErrAborted) {
				return fmt.Errorf("the group afterwards: %v", err)
			}
			return nil
		})
	})
}

// Rank 1 fails in every pass. Its Finish still waits until the other ranks have taken part in the pass.
// Otherwise rank 1 could replace its report before the other ranks have read it.
func TestFailingRankDoesNotGetAhead(t *testing.T) {
	var fails bool // Fill fails on rank 1
	devices := []device.Device{devicetest.Lagging(cpu.New(nil)), devicetest.Lagging(faulty{cpu.New(nil), &fails})}
	opts := commtest.WrapBackend(nil, func(b backend.Backend) backend.Backend { return unjoined{b} })
	finished := make(chan struct{})
	commtest.OnDevices(t, devices, opts, func(pg *comm.ProcessGroup) error {
		r := must.New(New(t.Context(), pg, params(), nil))
		for pass := range 2 {
			if pass == 1 && pg.Rank() == 0 {
				select {
				case <-finished:
					return errors.New("rank 1 finished a pass that this rank has not begun")
				case <-time.After(20 * time.Millisecond): // by now rank 1 would have finished if it did not wait
				}
			}
			if pg.Rank() == 1 {
				fails = pass == 1 // in pass 1, rank 1 cannot clear the flags of pass 0
			}
			r.Begin(true, nil)
			err := r.Finish(t.Context(), nil)
			if err == nil {
				return fmt.Errorf("pass %d of nothing: no error", pass)
			}
			if pass == 1 && pg.Rank() == 1 {
				close(finished)
				if !errors.Is(err, errFill) {
					return fmt.Errorf("got %v, want its own failure", err)
				}
			}
		}
		return nil
	})
}

// If the context of Finish ends, the reducer aborts the group, because a reduction may still use the
// buckets.
func TestFinishAbortsWhenContextEnds(t *testing.T) {
	groups, err := comm.Local(2, nil)
	if err != nil {
		t.Fatal(err)
	}
	var rs [2]*Reducer
	var wg sync.WaitGroup
	for i, pg := range groups {
		wg.Go(func() { rs[i], _ = New(t.Context(), pg, params(), nil) })
	}
	wg.Wait()
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	rs[0].Begin(true, nil)
	if err := rs[0].Finish(ctx, nil); !errors.Is(err, cause) {
		t.Errorf("got %v", err)
	}
	if err := groups[0].Barrier().Wait(t.Context()); !errors.Is(err, comm.ErrAborted) {
		t.Errorf("a later call: %v", err)
	}
	for _, pg := range groups {
		pg.Close()
	}
}

func TestOptionsAreChecked(t *testing.T) {
	commtest.OnRanks(t, 1, nil, func(pg *comm.ProcessGroup) error {
		if _, err := New(t.Context(), pg, params(), &Options{BucketCapMB: -1}); err == nil || !strings.Contains(err.Error(), "-1") {
			return fmt.Errorf("a negative cap: %v", err)
		}
		if _, err := New(t.Context(), pg, nil, nil); err == nil {
			return errors.New("no parameters: no error")
		}
		counts := []reducer.Param{{Name: "counts", Shape: device.Shape{2}, DType: device.Int32}}
		if _, err := New(t.Context(), pg, counts, nil); err == nil || !strings.Contains(err.Error(), "int32") {
			return fmt.Errorf("integers: %v", err)
		}
		return nil
	})
}

func TestCaps(t *testing.T) {
	for _, c := range []struct {
		o    Options
		want []int
	}{
		{Options{}, []int{1 << 20, 25 << 20}},
		{Options{BucketCapMB: 25}, []int{25 << 20, 25 << 20}},
		{Options{BucketCapMB: 10, FirstBucketCapMB: 0.5}, []int{1 << 19, 10 << 20}},
		{Options{FirstBucketCapMB: 2}, []int{2 << 20, 25 << 20}},
		{Options{BucketCapsMB: []float64{0.25, 1, 50}}, []int{1 << 18, 1 << 20, 50 << 20}},
	} {
		if got, err := c.o.caps(); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%+v: %v, %v, want %v", c.o, got, err, c.want)
		}
	}
	for _, o := range []Options{
		{BucketCapMB: -1}, {FirstBucketCapMB: math.NaN()}, {BucketCapsMB: []float64{1, 0}}, {BucketCapMB: math.Inf(1)},
		{BucketCapsMB: []float64{1}, BucketCapMB: 2}, {BucketCapsMB: []float64{1}, FirstBucketCapMB: 2},
	} {
		if got, err := o.caps(); err == nil {
			t.Errorf("%+v: %v, want an error", o, got)
		}
	}
}
