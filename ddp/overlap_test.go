package ddp

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/testkit/backendtest"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/devicetest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
	"github.com/goddp/goddp/profile"
)

// layers is a chain of layers, each with a backward that takes a while.
type layers struct {
	w    []*nn.Parameter
	each time.Duration
}

func (m layers) Forward(x *autograd.Variable) *autograd.Variable {
	for _, w := range m.w {
		x = autograd.Mul(w.Var(), autograd.Apply(&work{m.each}, x))
	}
	return x
}

func (m layers) Parameters() []*nn.Parameter { return m.w }

// work is an identity whose backward takes a while.
type work struct{ d time.Duration }

func (*work) Name() string                         { return "work" }
func (*work) Shape(in []device.Shape) device.Shape { return in[0] }
func (*work) Forward(c *autograd.Call) error       { return c.Kernels.Copy(c.Stream, c.Out, c.In[0]) }
func (w *work) Backward(c *autograd.Call, i int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	time.Sleep(w.d)
	return c.Kernels.Axpby(c.Stream, dst, acc, g)
}

// In a model with k buckets a delay in every reduction lengthens the step by only one delay, that
// of the last reduction, from the first step on, also if the layers are recomputed. synctest's clock makes the times
// exact: only the sleeps count.
func TestReductionsOverlapTheBackwardPass(t *testing.T) {
	commtest.OutsideJobs(t)
	const buckets, each, delay, ranks = 8, 100 * time.Millisecond, 90 * time.Millisecond, 2
	step := func(t *testing.T, checkpoints bool, delay time.Duration) (took []time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			opts := commtest.WrapBackend(nil, func(b backend.Backend) backend.Backend {
				return backendtest.Slow{Backend: b, Delay: delay, Chooses: func(c *backend.Call) bool { return c.Kind == backend.AllReduce }}
			})
			commtest.OnGoroutines(t, ranks, opts, func(pg *comm.ProcessGroup) error {
				var parts []nn.Module
				for range 2 {
					part := layers{each: each}
					for i := range buckets / 2 {
						part.w = append(part.w, nn.NewParameter(fmt.Sprint("w", i), autograd.Scalar(pg.Device(), 1)))
					}
					if parts = append(parts, part); checkpoints {
						parts[len(parts)-1] = nn.Checkpoint(part)
					}
				}
				model := must.New(New(nn.Sequential(parts...), pg, &Options{BucketCapMB: 1e-6})) // a bucket for each parameter
				if n := len(model.Stats().Buckets); n != buckets {
					return fmt.Errorf("%d buckets, want %d", n, buckets)
				}
				trace := profile.Of(pg.Device())
				trace.Start()
				x := autograd.Scalar(pg.Device(), 1)
				for range 3 {
					start := time.Now()
					if err := model.Forward(x).Backward(nil); err != nil {
						return err
					}
					if pg.Rank() == 0 {
						took = append(took, time.Since(start))
					}
				}
				if o := trace.Overlap(); o.Reductions != 3*buckets {
					return fmt.Errorf("%d reductions traced, want %d", o.Reductions, 3*buckets)
				}
				return nil
			})
		})
		return took
	}
	for _, checkpoints := range []bool{false, true} {
		plain, delayed := step(t, checkpoints, 0), step(t, checkpoints, delay)
		for i := range plain {
			// The first layer passes no gradient on, so no computation hides the last reduction.
			if alone := (buckets - 1) * each; plain[i] < alone {
				t.Fatalf("step %d took %v: the layers alone take %v", i, plain[i], alone)
			}
			if longer := delayed[i] - plain[i]; longer < delay/2 || longer >= delay*13/10 {
				t.Errorf("checkpoints: %v, step %d: %d reductions, each delayed by %v, lengthen the step by %v", checkpoints, i, buckets, delay, longer)
			}
		}
	}
}

// sought is a backend in which calls with a given name start only when a stream waits for them.
type sought struct {
	backend.Backend
	name string
}

func (s sought) Start(c *backend.Call) (backend.Task, error) {
	if c.Name != s.name {
		return s.Backend.Start(c)
	}
	h := held{s.Backend, s.name, make(chan struct{})}
	task, err := h.Start(c)
	return soughtTask{task, sync.OnceFunc(func() { close(h.release) })}, err
}

type soughtTask struct {
	backend.Task
	wait func()
}

func (t soughtTask) Join(ctx context.Context, s device.Stream) error {
	t.wait()
	return t.Task.Join(ctx, s)
}

// timed counts the events with a time on the compute stream.
type timed struct {
	device.Device
	events *int
}

func (c timed) Compute() device.Stream { return timedStream{c.Device.Compute(), c.events} }

type timedStream struct {
	device.Stream
	events *int
}

func (c timedStream) Record() device.Event {
	*c.events++
	return c.Stream.Record()
}

// The updates of the last bucket wait for its reduction. A trace shows that wait, and does not
// count it as computation. Without a trace it costs no event.
func TestWaitOfUpdatesIsNotHidden(t *testing.T) {
	const wide = 1100 // 4.8 MB of gradients for each layer: a large last bucket
	var events [2]int
	var devices []device.Device
	for r := range events {
		devices = append(devices, timed{devicetest.Lagging(cpu.New(nil)), &events[r]})
	}
	opts := commtest.WrapBackend(nil, func(b backend.Backend) backend.Backend { return sought{b, "bucket 1"} })
	commtest.OnDevices(t, devices, opts, func(pg *comm.ProcessGroup) error {
		model := must.New(New(nn.Sequential(nn.Linear(wide, wide, nil), nn.Linear(wide, wide, nil)), pg, &Options{BucketCapMB: 1}))
		opt := must.New(optim.NewSGD(model.Parameters(), &optim.SGDOptions{LR: 0.1}))
		step := func() error {
			if err := autograd.Sum(model.Forward(autograd.Zeros(pg.Device(), device.Float32, 1, wide))).Backward(nil); err != nil {
				return err
			}
			if err := opt.Step(); err != nil {
				return err
			}
			return pg.Device().Compute().Sync(t.Context())
		}
		if err := step(); err != nil {
			return err
		}
		if n := events[pg.Rank()]; n != 1 {
			return fmt.Errorf("%d events with a time in a step without a trace, want the first bucket's head start alone", n)
		}
		trace := profile.Of(pg.Device())
		trace.Start()
		if err := step(); err != nil {
			return err
		}
		spans := map[string]profile.Span{}
		var waits []profile.Span // the waits for the flags, which follow the first bucket, and for each bucket
		for _, s := range trace.Spans() {
			if spans[s.Name] = s; s.Waits {
				waits = append(waits, s)
			}
		}
		contains := func(s, t profile.Span) bool {
			return s.Begin != nil && t.Begin != nil && !s.Begin.Time().Before(t.Begin.Time()) && !s.End.Time().After(t.End.Time())
		}
		first, last := spans["AllReduce bucket 0"], spans["AllReduce bucket 1"]
		if len(waits) != 3 || !contains(last, waits[2]) || !contains(waits[2], spans["optimizer"]) {
			return fmt.Errorf("waits %v, want three, the last with the reduction %v within it, in the optimizer's step, %v", waits, last, spans["optimizer"])
		}
		if waits[0].Begin.Time().Before(spans["backward"].End.Time()) || first.End.Time().After(waits[0].End.Time()) {
			return fmt.Errorf("a wait from %v to %v, want one behind the backward pass, %v, till the first reduction is over, %v",
				waits[0].Begin, waits[0].End, spans["backward"].End, first.End)
		}
		alone := last.End.Time().Sub(last.Begin.Time())
		if o := trace.Overlap(); o.Hidden > o.Comm-alone {
			return fmt.Errorf("%v of %v are hidden, but not the %v of the last reduction", o.Hidden, o.Comm, alone)
		}
		return nil
	})
}
