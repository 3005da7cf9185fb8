package ddp

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/testkit/commtest"
)

// order returns the parameters in the order of their buckets.
func order(m *Model) (out []string) {
	for _, b := range m.Stats().Buckets {
		out = append(out, b.Params...)
	}
	return out
}

// If a model uses its parameters in another order than that of registration, all ranks rebuild the
// buckets once, in rank 0's order, after the first reducing pass. Accumulated gradients move along.
func TestBucketsAreRebuilt(t *testing.T) {
	onAll(t, func(pg *comm.ProcessGroup, _ bool) error { return bucketsAreRebuilt(pg) })
}

func bucketsAreRebuilt(pg *comm.ProcessGroup) error {
	m, model, _ := trainedSwitches(pg, 4, &Options{BucketCapMB: 1e-6}, nil)
	// Backward goes from the last term to the first.
	use := [][]int{{3, 1, 0, 2}, {1, 0, 3, 2}}[pg.Rank()%2]
	registered, observed := []string{"w3", "w2", "w1", "w0"}, []string{"w2", "w0", "w1", "w3"}
	x, mean := share(pg)
	pass := func(sync bool, buckets []string, want ...float64) error {
		backward := func() error { return m.step(model, x, use...) }
		run := model.NoSync
		if sync {
			run = func(f func() error) error { return f() }
		}
		if err := errors.Join(run(backward), m.has(want...)); err != nil {
			return err
		}
		if got := order(model); !slices.Equal(got, buckets) {
			return fmt.Errorf("the buckets are %v, want %v", got, buckets)
		}
		return nil
	}
	err := errors.Join(
		pass(false, registered, x, 2*x, 3*x, 4*x), // determines no order: ranks may make different numbers of accumulating passes
		pass(true, registered, 2*mean, 4*mean, 6*mean, 8*mean),
		pass(false, registered, 2*mean+x, 4*mean+2*x, 6*mean+3*x, 8*mean+4*x),
	)
	if err != nil {
		return err
	}
	m.w[2].Var().ZeroGrad() // so that there is no gradient to move
	place := m.w[0].Var().Tensor().Buf.Addr()
	before := m.w[0].Grad().Tensor().Buf.Addr()
	if err := pass(true, observed, 4*mean, 8*mean, 3*mean, 16*mean); err != nil {
		return fmt.Errorf("the pass that rebuilds: %w", err)
	}
	after := m.w[0].Grad().Tensor().Buf.Addr()
	if now := m.w[0].Var().Tensor().Buf.Addr(); now != place || before == after {
		return fmt.Errorf("the parameter was at %#x and is at %#x, its gradient at %#x and %#x", place, now, before, after)
	}
	// The buckets are rebuilt only once: another order changes nothing.
	use = []int{0, 1, 2, 3}
	if err := errors.Join(pass(true, observed, 5*mean, 10*mean, 6*mean, 20*mean), pass(true, observed, 6*mean, 12*mean, 9*mean, 24*mean)); err != nil {
		return err
	}
	if now := m.w[0].Grad().Tensor().Buf.Addr(); now != after {
		return fmt.Errorf("the gradient moved again")
	}
	if got := model.Stats(); !slices.Equal(got.Rebuilt, observed) || got.Passes != 4 || got.Accumulated != 2 || !slices.Equal(got.Ready, registered) {
		return fmt.Errorf("statistics %+v", got)
	}
	return nil
}

// logged returns a logger at level debug, and a function that counts its lines with a level and the beginning of a message.
func logged() (*slog.Logger, func(text string) int) {
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
	return log, func(text string) int { return strings.Count(out.String(), text) }
}

// Buckets are rebuilt only if that changes them, and only if one pass determines the order of the
// next.
func TestBucketsAreRebuiltOnlyIfNeeded(t *testing.T) {
	for _, c := range []struct {
		name    string
		opts    Options
		rebuilt bool
		use     []int
	}{
		{"the order of registration", Options{BucketCapMB: 1e-6}, false, []int{0, 1, 2}},
		{"another order", Options{BucketCapMB: 1e-6}, true, []int{2, 0, 1}},
		{"another order in one bucket", Options{}, false, []int{2, 0, 1}},
		{"unused parameters are found", Options{BucketCapMB: 1e-6, FindUnusedParameters: true}, false, []int{2, 0}},
		{"a static graph", Options{BucketCapMB: 1e-6, StaticGraph: true}, true, []int{2, 0}},
	} {
		for _, ranks := range commtest.Sizes(t, 2, 4) {
			log, count := logged()
			commtest.OnRanks(t, ranks, &comm.Options{Log: log}, func(pg *comm.ProcessGroup) error {
				m, model, _ := trainedSwitches(pg, 3, &c.opts, nil)
				for range 3 {
					if err := m.step(model, 1, c.use...); err != nil {
						return err
					}
				}
				if got := model.Stats().Rebuilt; (got != nil) != c.rebuilt {
					return fmt.Errorf("%s: rebuilt in the order %v", c.name, got)
				}
				return nil
			})
			want := 0
			if c.rebuilt {
				want = commtest.Here(ranks)
			}
			if n := count(`level=DEBUG msg="the reducer's buckets have been rebuilt`); n != want {
				t.Errorf("%s: said %d times that buckets were rebuilt, want %d", c.name, n, want)
			}
		}
	}
}

// A pass that is incomplete on rank 0 determines no order, and the next pass does. Gradients that
// other ranks lack do not matter.
func TestBucketsAreRebuiltAfterAFailure(t *testing.T) {
	for bad := range 2 {
		onAll(t, func(pg *comm.ProcessGroup, isLagging bool) error {
			m, model, _ := trainedSwitches(pg, 3, &Options{BucketCapMB: 1e-6}, nil)
			use := []int{1, 2, 0}
			for pass := range 3 {
				mine := use
				if pass == 0 && pg.Rank() == bad {
					mine = use[:2]
				}
				err := errors.Join(m.step(model, 1, mine...), m.w[2].Var().GradErr())
				if (err != nil) != (pass == 0) {
					return fmt.Errorf("pass %d: %v", pass, err)
				}
				m.zeroGrad()
				rebuilt := pass == 2 || pass == 1 && bad == 1
				if got := order(model); slices.Equal(got, []string{"w0", "w2", "w1"}) != rebuilt {
					return fmt.Errorf("pass %d, without a gradient on rank %d: the buckets are %v", pass, bad, got)
				}
			}
			return nil
		})
	}
}

// small is a backend that fails one allocation when full is set.
type small struct {
	backend.Backend
	full *atomic.Bool
}

func (s small) Alloc(size int) (device.Buffer, error) {
	if s.full.CompareAndSwap(true, false) {
		return device.Buffer{}, &device.OutOfMemoryError{Device: "small", Asked: int64(size)}
	}
	return s.Backend.Alloc(size)
}

// If one rank has no memory for new buckets, all ranks keep the old ones and train on.
func TestRebuildWithoutMemoryKeepsBuckets(t *testing.T) {
	var full atomic.Bool // the next allocation of either rank fails
	log, count := logged()
	opts := commtest.WrapBackend(&comm.Options{Log: log}, func(b backend.Backend) backend.Backend { return small{b, &full} })
	commtest.OnGoroutines(t, 2, opts, func(pg *comm.ProcessGroup) error {
		m, model, _ := trainedSwitches(pg, 3, &Options{BucketCapMB: 1e-6}, nil)
		before := order(model)
		for pass := range 4 {
			if err := pg.Barrier().Wait(t.Context()); err != nil {
				return err
			}
			if pass == 1 && pg.Rank() == 0 {
				full.Store(true)
			}
			if err := pg.Barrier().Wait(t.Context()); err != nil {
				return err
			}
			x := float64(1 + 2*pg.Rank())
			if err := errors.Join(m.step(model, x, 2, 0, 1), m.has(2*float64(1+pass), 4*float64(1+pass), 6*float64(1+pass))); err != nil {
				return err
			}
		}
		if now := order(model); !slices.Equal(now, before) || model.Stats().Rebuilt != nil {
			return fmt.Errorf("the buckets were %v and are %v", before, now)
		}
		return nil
	})
	if n := count(`level=WARN msg="the reducer's buckets were not rebuilt`); n != 2 {
		t.Errorf("said %d times why, want once on each rank", n)
	}
}
