package ddp

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/comm/backend"
	"github.com/goddp/goddp/comm/commtest"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/profile"
)

// slow makes every reduction take a delay longer: it begins that much after
// its data is ready, and those behind it wait for it.
type slow struct {
	backend.Backend
	delay time.Duration
}

func (s slow) Start(c *backend.Call) (backend.Task, error) {
	if c.Kind == backend.AllReduce {
		c.After = late{c.After, s.delay}
	}
	return s.Backend.Start(c)
}

type late struct {
	device.Event
	delay time.Duration
}

func (l late) Done() (bool, error) { return false, nil }

func (l late) Sync(ctx context.Context) error {
	if err := l.Event.Sync(ctx); err != nil {
		return err
	}
	select {
	case <-time.After(l.delay):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// layers is a chain of layers whose backward each takes a while.
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

// work is the identity, whose gradient takes a while.
type work struct{ d time.Duration }

func (*work) Name() string                         { return "work" }
func (*work) Shape(in []device.Shape) device.Shape { return in[0] }
func (*work) Forward(c *autograd.Call) error       { return c.Kernels.Copy(c.Stream, c.Out, c.In[0]) }
func (w *work) Backward(c *autograd.Call, i int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	time.Sleep(w.d)
	return c.Kernels.Axpby(c.Stream, dst, acc, g)
}

// Overlap by its effect: in a model of k buckets, a delay in every reduction
// lengthens the step by that of the last one alone, from the first step on.
// The bubble's clock makes the times exact: only the sleeps count.
func TestReductionsOverlapTheBackwardPass(t *testing.T) {
	commtest.OutsideJobs(t)
	const buckets, each, delay, ranks = 8, 100 * time.Millisecond, 90 * time.Millisecond, 2
	step := func(t *testing.T, delay time.Duration) (took []time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			opts := &comm.Options{WrapBackend: func(b backend.Backend) backend.Backend { return slow{b, delay} }}
			commtest.OnGoroutines(t, ranks, opts, func(pg *comm.ProcessGroup) error {
				m := layers{each: each}
				for i := range buckets {
					m.w = append(m.w, nn.NewParameter(fmt.Sprint("w", i), autograd.Scalar(pg.Device(), 1)))
				}
				model, err := New(m, pg, &Options{BucketCapMB: 1e-6}) // a bucket for each parameter
				if err != nil {
					return err
				}
				if n := len(model.Buckets()); n != buckets {
					return fmt.Errorf("%d buckets, want %d", n, buckets)
				}
				trace := profile.Of(pg.Device().Values())
				trace.Start()
				x := autograd.Scalar(pg.Device(), 1)
				for range 3 {
					begun := time.Now()
					if err := model.Forward(x).Backward(); err != nil {
						return err
					}
					if pg.Rank() == 0 {
						took = append(took, time.Since(begun))
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
	plain, delayed := step(t, 0), step(t, delay)
	for i := range plain {
		// The first layer passes no gradient on: its reduction, the last one,
		// has nothing left to hide behind.
		if alone := (buckets - 1) * each; plain[i] < alone {
			t.Fatalf("step %d took %v: the layers alone take %v", i, plain[i], alone)
		}
		if longer := delayed[i] - plain[i]; longer < delay/2 || longer >= delay*13/10 {
			t.Errorf("step %d: %d reductions, each delayed by %v, lengthen the step by %v", i, buckets, delay, longer)
		}
	}
}
