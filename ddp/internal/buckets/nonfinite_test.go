package buckets

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/must"
)

// If gradients of some ranks are not finite, every rank gets an error that names these ranks. The next
// pass succeeds. Buckets have one or several parameters.
func TestNonFinite(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(-1)
	for _, c := range []struct {
		name  string
		mb    float64
		bad   map[int]map[int]float64 // by rank and gradient: the NaN or infinity in it
		lacks int                     // the gradient that rank 0 lacks; -1: none
		want  []reducer.NonFinite
		says  string
	}{
		// In these cases d, c, b and a have one bucket each, in this order.
		{"the middle bucket", 1e-6, map[int]map[int]float64{1: {2: nan}}, -1,
			[]reducer.NonFinite{{Rank: 1, Bucket: 1, Param: "c", Params: 1}}, `parameter "c", in bucket 1, on rank 1: the step`},
		{"the last bucket", 1e-6, map[int]map[int]float64{2: {0: inf}}, -1, []reducer.NonFinite{{Rank: 2, Bucket: 3, Param: "a", Params: 1}}, ""},
		{"several", 1e-6, map[int]map[int]float64{0: {0: inf, 1: nan, 3: nan}, 2: {2: nan}}, -1,
			[]reducer.NonFinite{{Rank: 0, Bucket: 0, Param: "d", Params: 3}, {Rank: 2, Bucket: 1, Param: "c", Params: 1}}, `"d", in bucket 0, and 2 more on rank 0; of parameter "c", in bucket 1, on rank 2`},
		// In this case d and b have one bucket, and c and a another.
		{"the first in a bucket", 0, map[int]map[int]float64{1: {0: nan, 1: nan, 3: inf}}, -1, []reducer.NonFinite{{Rank: 1, Bucket: 0, Param: "b", Params: 3}}, ""},
		{"beside one that is missing", 1e-6, map[int]map[int]float64{1: {2: nan}}, 1, []reducer.NonFinite{{Rank: 1, Bucket: 1, Param: "c", Params: 1}}, `no gradient in this backward pass for parameter "b" on rank 0`},
	} {
		for _, isLagging := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, lagging: %v", c.name, isLagging), func(t *testing.T) {
				commtest.OnDevices(t, devices(3, isLagging), nil, func(pg *comm.ProcessGroup) error {
					r := must.New(New(t.Context(), pg, params(), &Options{BucketCapMB: c.mb, Prescaled: true, CheckNonFinite: true}))
					e, rank := engine{pg, r}, pg.Rank()
					for pass := range 5 {
						bad := pass == 1 || pass == 2
						r.Begin(true, nil)
						for _, i := range []int{3, 2, 1, 0} {
							r.State(i).Zero()
							switch v, is := c.bad[rank][i]; {
							case bad && is:
								e.write(i, v)
							case !bad || rank != 0 || i != c.lacks:
								e.write(i, float64(rank))
							}
						}
						known := r.Finish(t.Context(), nil)
						err := r.Err()
						if !bad {
							if got, gerr := e.all(2); err != nil || gerr != nil || math.Abs(got-1) > 1e-6 {
								return fmt.Errorf("pass %d: %w, average %v, %w", pass, err, got, gerr)
							}
							continue
						}
						var found *reducer.NonFiniteError
						if !errors.As(err, &found) || !reflect.DeepEqual(found.Found, c.want) || !errors.Is(err, device.ErrSkipped) {
							return fmt.Errorf("pass %d: got %v, want %+v", pass, err, c.want)
						}
						if !strings.Contains(err.Error(), c.says) {
							return fmt.Errorf("pass %d: it says %q, want %q", pass, err, c.says)
						}
						mine := len(c.bad[rank]) > 0 || rank == 0 && c.lacks >= 0
						if (known != nil) != (mine || !isLagging) {
							return fmt.Errorf("pass %d: Finish returned %v; this rank's own fault: %v", pass, known, mine)
						}
					}
					return nil
				})
			})
		}
	}
}

// If an accumulating pass makes a gradient non-finite, the next pass that reduces fails with a
// NonFiniteError.
func TestNonFiniteAccumulates(t *testing.T) {
	commtest.OnRanks(t, 2, nil, func(pg *comm.ProcessGroup) error {
		r := must.New(New(t.Context(), pg, params(), &Options{CheckNonFinite: true}))
		e := engine{pg, r}
		if err := e.pass(false, []float64{1, math.NaN()}[pg.Rank()]); err != nil {
			return fmt.Errorf("a pass that does not reduce: %w", err)
		}
		var found *reducer.NonFiniteError
		if err := e.pass(true, 1); !errors.As(err, &found) || found.Found[0].Rank != 1 || found.Found[0].Params != 4 {
			return fmt.Errorf("the pass that reduces: %v", err)
		}
		return e.pass(true, 1)
	})
}

// If only rank 0 checks its gradients, a NonFiniteError names only gradients of rank 0.
func TestNonFiniteCheckOnSomeRanks(t *testing.T) {
	commtest.OnRanks(t, 2, nil, func(pg *comm.ProcessGroup) error {
		r := must.New(New(t.Context(), pg, params(), &Options{CheckNonFinite: pg.Rank() == 0}))
		e := engine{pg, r}
		for bad := range 2 {
			r.Begin(true, nil)
			for i := range 4 {
				v := 1.
				if pg.Rank() == bad {
					v = math.NaN()
				}
				r.State(i).Zero()
				e.write(i, v)
			}
			err := r.Finish(t.Context(), nil)
			if found := errors.Is(err, device.ErrSkipped); found != (bad == 0) {
				return fmt.Errorf("NaN on rank %d: %v", bad, err)
			}
		}
		return nil
	})
}
