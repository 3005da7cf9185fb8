package buckets

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/must"
)

// plain is a hook that all-reduces each bucket, as the reducer does without a hook.
type plain struct{}

func (plain) Reduce(b reducer.GradBucket) reducer.Reduction {
	return b.Group.With(&comm.CallOptions{Name: b.Name, After: b.After}).AllReduce(b.Flat, b.Op)
}

// Rank r makes r+1 passes, and then shadow passes. After each pass the gradients are equal on all ranks.
// They are averages over all ranks or, with byActive, over the ranks that did not make a shadow pass.
func TestShadowPasses(t *testing.T) {
	for _, c := range []struct {
		name     string
		opts     Options
		byActive bool
	}{
		{"averaged by the engine", Options{Prescaled: true, BucketCapMB: 1e-5}, false},
		{"averaged by the reducer, over active ranks", Options{BucketCapMB: 1e-5}, true},
		{"unused parameters are found", Options{Unused: UnusedFound}, true},
		{"a static graph", Options{Prescaled: true, Unused: UnusedFixed}, true},
		{"a hook", Options{Prescaled: true, BucketCapMB: 1e-5, Hook: plain{}}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			onRanks(t, func(pg *comm.ProcessGroup) error {
				ranks := pg.Size()
				r := must.New(New(t.Context(), pg, params(), &c.opts))
				e := engine{pg, r}
				for range 2 {
					r.Join(c.byActive)
					for pass := range ranks + 1 {
						if pass <= pg.Rank() {
							r.Begin(true, func(int) bool { return true })
							for _, i := range []int{2, 0, 3, 1} {
								e.write(i, float64(6*(i+1)))
							}
						} else {
							r.Shadow(false)
						}
						if err := r.Finish(t.Context(), nil); err != nil {
							return fmt.Errorf("pass %d: %w", pass, err)
						}
						who := r.Attendance()
						if pass == ranks {
							if who.First() != -1 || who.Last != ranks-1 || !who.Uneven {
								return fmt.Errorf("after the last pass: %+v", who)
							}
							break
						}
						if who.First() != pass || who.Last != pass || who.Uneven != (pass > 0) {
							return fmt.Errorf("pass %d: %+v", pass, who)
						}
						for i := range 4 {
							got, err := e.all(i)
							want := float64(6 * (i + 1))
							if !c.byActive {
								want *= float64(ranks-pass) / float64(ranks)
							}
							if err != nil || math.Abs(got-want) > 1e-5 || !isWritten(r, i) {
								return fmt.Errorf("pass %d: gradient %d is %v, want %v; zeroed: %v, %v", pass, i, got, want, !isWritten(r, i), err)
							}
							r.State(i).Zero()
						}
					}
					r.Leave()
				}
				if s := r.Stats(); s.Passes != 2*(ranks+1) || s.Shadowed != 2*(ranks-pg.Rank()) || s.Skipped != 0 || len(s.Unused) != 0 {
					return fmt.Errorf("statistics %+v", s)
				}
				return nil
			})
		})
	}
}

// A shadow pass adds zeros to the sums, even if the outcome of the previous pass is not known when the
// program calls Shadow. The buckets then hold the averages of the previous pass; the shadow pass must not
// add these averages to the sums.
func TestShadowPassBeforeOutcomeIsKnown(t *testing.T) {
	commtest.OnDevices(t, lagging(2), nil, func(pg *comm.ProcessGroup) error {
		r := must.New(New(t.Context(), pg, params(), &Options{Prescaled: true}))
		e := engine{pg, r}
		r.Join(false)
		for range 3 {
			if pg.Rank() == 1 {
				r.Shadow(false)
			} else {
				r.Begin(true, nil)
				for i := range 4 {
					r.State(i).Zero()
					e.write(i, 2)
				}
			}
			if err := r.Finish(t.Context(), nil); err != nil || !r.Pending() {
				return fmt.Errorf("Finish returned %v, pending: %v", err, r.Pending())
			}
		}
		if err := r.Err(); err != nil {
			return err
		}
		for i := range 4 {
			if got, err := e.all(i); got != 1 || err != nil { // the gradient of rank 0, averaged over two ranks
				return fmt.Errorf("gradient %d is %v, want 1; %v", i, got, err)
			}
		}
		r.Leave()
		return nil
	})
}

// In one pass, rank 0 leaves because it has no inputs, rank 1 leaves with a cause, and rank 3 lacks a
// gradient. Every rank gets an error that names all three ranks.
func TestLeaveIsKnownToAllRanks(t *testing.T) {
	commtest.OnRanks(t, 4, nil, func(pg *comm.ProcessGroup) error {
		r := must.New(New(t.Context(), pg, params(), &Options{Prescaled: true}))
		e := engine{pg, r}
		r.Join(false)
		var cause error
		switch pg.Rank() {
		case 0:
			r.Shadow(true)
		case 1:
			r.Shadow(false) // rank 1 leaves because Finish gets a cause
			cause = errors.New("no luck")
		default:
			r.Begin(true, nil)
			for i := range 4 {
				if i > 0 || pg.Rank() == 2 {
					e.write(i, 1)
				}
			}
		}
		err := r.Finish(t.Context(), cause)
		var left *reducer.LeftError
		var missing *reducer.MissingGradientError
		if !errors.As(err, &left) || !slices.Equal(left.Left, []reducer.Left{{Rank: 0}, {Rank: 1, Cause: "no luck"}}) || r.Left() != error(left) {
			return fmt.Errorf("got %v, and later %v", err, r.Left())
		}
		if !errors.As(err, &missing) || len(missing.Missing) != 1 || missing.Missing[0].Rank != 3 {
			return fmt.Errorf("got %v, want rank 3's missing gradient too", err)
		}
		if want := "rank 0 ran out of inputs; rank 1 failed: no luck: training ends on every rank"; !strings.Contains(err.Error(), want) {
			return fmt.Errorf("%q lacks %q", err, want)
		}
		// After the LeftError no rank's pass reduces any more.
		if pg.Rank() == 2 {
			r.Begin(true, nil)
			if err := r.Finish(t.Context(), nil); !errors.As(err, &left) {
				return fmt.Errorf("the next pass: %v", err)
			}
			if s := r.Stats(); s.Passes != 1 || s.Skipped != 1 {
				return fmt.Errorf("statistics %+v, want one pass that reduced, and was skipped", s)
			}
		}
		// If all ranks leave because they ran out of inputs, there is no error.
		r.Leave()
		r.Join(false)
		r.Shadow(true)
		if err := r.Finish(t.Context(), nil); err != nil || r.Attendance().First() != -1 {
			return fmt.Errorf("at the end: %v", err)
		}
		r.Leave()
		return e.pass(true, 1)
	})
}
