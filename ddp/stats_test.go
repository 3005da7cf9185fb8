package ddp

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/profile"
)

// lasting is a backend whose reductions report a given duration.
type lasting struct {
	backend.Backend
	each time.Duration
}

func (l lasting) Start(c *backend.Call) (backend.Task, error) {
	t, err := l.Backend.Start(c)
	if err != nil || c.Kind != backend.AllReduce {
		return t, err
	}
	return lastingTask{t, l.each}, nil
}

type lastingTask struct {
	backend.Task
	each time.Duration
}

func (t lastingTask) Span() (began, done time.Time) {
	if began, done = t.Task.Span(); !done.IsZero() {
		done = done.Add(t.each)
	}
	return began, done
}

// The times of passes by synctest's clock: all reductions but the last lie within the backward
// pass.
func TestStats(t *testing.T) {
	const buckets, each, comms, passes = 4, 100 * time.Millisecond, 80 * time.Millisecond, 3
	synctest.Test(t, func(t *testing.T) {
		opts := commtest.WrapBackend(nil, func(b backend.Backend) backend.Backend { return lasting{b, comms} })
		commtest.OnGoroutines(t, 2, opts, func(pg *comm.ProcessGroup) error {
			m := layers{each: each}
			for i := range buckets {
				m.w = append(m.w, nn.NewParameter(fmt.Sprint("w", i), autograd.Scalar(pg.Device(), 1)))
			}
			model := must.New(New(m, pg, &Options{BucketCapMB: 1e-6, Stats: true}))
			if s := model.Stats(); s.Timed != 0 || s.Percent() != 100 || strings.Contains(s.String(), "forward") {
				return fmt.Errorf("before the first pass: %v", s)
			}
			x := autograd.Scalar(pg.Device(), 1)
			for range passes {
				y := model.Forward(x)
				if err := errors.Join(y.Backward(nil), model.NoSync(func() error { return model.Forward(x).Backward(nil) })); err != nil {
					return err
				}
			}
			y := failIf(true, model.Forward(x)) // a failed pass, which is not counted
			if err := y.Backward(nil); err == nil {
				return errors.New("no error")
			}
			s := model.Stats()
			if s.Passes != passes+1 || s.Accumulated != passes || s.Skipped != 1 || s.Timed != passes || len(s.Buckets) != buckets || s.Rebuilt != nil {
				return fmt.Errorf("counted %v", s)
			}
			// Before each pass but the first there is a pass that accumulates. The first layer
			// passes no gradient on, and has the last bucket.
			backward := (buckets - 1) * each * (2*passes - 1) / passes
			if s.Backward != backward || s.Forward != 0 || s.Comm != buckets*comms || s.Hidden != (buckets-1)*comms || s.Percent() != 75 {
				return fmt.Errorf("measured %v, want %v of backward passes and 3/4 of %v hidden", s, backward, buckets*comms)
			}
			if trace := profile.Of(pg.Device()); trace.On() || len(trace.Spans()) > 0 {
				return errors.New("the device's recorder was used")
			}
			return nil
		})
	})
}

// The model logs statistics at level debug, at intervals, without times unless Options.Stats is
// set.
func TestStatsAreLogged(t *testing.T) {
	for _, ranks := range commtest.Sizes(t, 2, 4) {
		log, count := logged()
		commtest.OnRanks(t, ranks, &comm.Options{Log: log}, func(pg *comm.ProcessGroup) error {
			w := nn.NewParameter("w", autograd.Scalar(pg.Device(), 1))
			model := must.New(New(times{w}, pg, nil))
			x := autograd.Scalar(pg.Device(), 1)
			for range 2*reportEvery + 1 {
				if err := model.Forward(x).Backward(nil); err != nil {
					return err
				}
				w.Var().ZeroGrad()
			}
			if s := model.Stats(); s.Timed != 0 || s.Passes != 2*reportEvery+1 {
				return fmt.Errorf("statistics %v", s)
			}
			return nil
		})
		if n := count(`level=DEBUG msg="distributed training`); n != 2*commtest.Here(ranks) {
			t.Errorf("logged %d times, want twice on each rank", n)
		}
	}
}

// In a trace each backward pass has its number and its unused parameters. The trace also shows the
// rebuilding of the buckets.
func TestTraceOfPasses(t *testing.T) {
	onEach(t, func(pg *comm.ProcessGroup) error {
		m, model, _ := trainedSwitches(pg, 3, &Options{BucketCapMB: 1e-6, StaticGraph: true}, nil)
		trace := profile.Of(pg.Device())
		trace.Start()
		pass := func() error { return m.step(model, 1, 2, 1) }
		if err := errors.Join(pass(), model.NoSync(pass), pass()); err != nil {
			return err
		}
		var got []string
		for _, s := range trace.Spans() {
			if s.Name == "backward" || s.Name == "rebuild buckets" {
				got = append(got, fmt.Sprint(s.Name, s.Args))
			}
		}
		want := []string{
			"backward[{pass 1} {reduces true} {buckets 3} {unused parameters 1}]", "backward[{pass 1} {reduces false} {buckets 3} {unused parameters 0}]",
			"rebuild buckets[{buckets 3}]", "backward[{pass 2} {reduces true} {buckets 3} {unused parameters 1}]",
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			return fmt.Errorf("traced %v, want %v", got, want)
		}
		return nil
	})
}
