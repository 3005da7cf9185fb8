package zero

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/testkit/backendtest"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
)

// layers is a chain of layers that take a while.
type layers struct {
	w    []*nn.Parameter
	each time.Duration
}

func newLayers(dev device.Device, n int, each time.Duration) layers {
	m := layers{each: each}
	for i := range n {
		m.w = append(m.w, nn.NewParameter(fmt.Sprint("w", i), autograd.FromSlice(dev, []float64{1, 2, 3}).SetName(fmt.Sprint("w", i))))
	}
	return m
}

func (m layers) Forward(x *autograd.Variable) *autograd.Variable {
	for _, w := range m.w {
		x = autograd.Apply(&work{m.each}, autograd.Mul(w.Var(), x))
	}
	return autograd.Sum(x)
}

func (m layers) Parameters() []*nn.Parameter { return m.w }

// work is an identity that takes a while, as does its backward.
type work struct{ d time.Duration }

func (*work) Name() string                         { return "work" }
func (*work) Shape(in []device.Shape) device.Shape { return in[0] }
func (w *work) Forward(c *autograd.Call) error {
	time.Sleep(w.d)
	return c.Kernels.Copy(c.Stream, c.Out, c.In[0])
}
func (w *work) Backward(c *autograd.Call, i int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	time.Sleep(w.d)
	return c.Kernels.Axpby(c.Stream, dst, acc, g)
}

// In a model with k buckets, a delay in every gather lengthens a step by only one delay, that of the parameters that are
// used first. In stage 3 this begins with the second step, when the order of gathers is known, and holds for the gathers
// of the backward pass too. synctest's clock makes the times exact: only the sleeps count.
func TestGathersOverlapComputation(t *testing.T) {
	commtest.OutsideJobs(t)
	const buckets, each, delay, ranks = 8, 100 * time.Millisecond, 90 * time.Millisecond, 2
	steps := func(t *testing.T, stage int, delay time.Duration) (took []time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			opts := commtest.WrapBackend(nil, func(b backend.Backend) backend.Backend {
				return backendtest.Slow{Backend: b, Delay: delay, Chooses: func(c *backend.Call) bool { return strings.Contains(c.Name, "of parameters") }}
			})
			commtest.OnGoroutines(t, ranks, opts, func(pg *comm.ProcessGroup) error {
				w := must.New(staged(newLayers(pg.Device(), buckets, each), pg, sgd, ddp.Options{BucketCapMB: 0.000023}, stage)) // a bucket for each parameter
				if n, slots := len(w.zero.shards.buckets), len(w.zero.shards.flow.slots); n != buckets || stage == 3 && slots != 3 {
					return fmt.Errorf("%d buckets in %d slots, want %d in 3", n, slots, buckets)
				}
				x := autograd.FromSlice(pg.Device(), []float64{1, 1, 1})
				for range 5 {
					start := time.Now()
					if err := w.model.Forward(x).Backward(nil); err != nil {
						return err
					}
					if err := w.opt.Step(); err != nil {
						return err
					}
					w.opt.ZeroGrad()
					if pg.Rank() == 0 {
						took = append(took, time.Since(start))
					}
				}
				return nil
			})
		})
		return took[1:] // no gather of stage 1 precedes the first step
	}
	for _, stage := range []int{1, 3} {
		plain, delayed := steps(t, stage, 0), steps(t, stage, delay)
		for i := range plain {
			if alone := 2 * buckets * each; plain[i] < alone {
				t.Fatalf("step %d took %v: the layers alone take %v", i, plain[i], alone)
			}
			if longer := delayed[i] - plain[i]; longer < delay/2 || longer >= delay*13/10 {
				t.Errorf("stage %d, step %d: the gathers of %d buckets, each delayed by %v, lengthen the step by %v", stage, i, buckets, delay, longer)
			}
		}
	}
}
