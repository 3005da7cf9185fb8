package buckets

import (
	"errors"
	"fmt"
	"testing"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/must"
)

// After Reject, Err returns the error that was given to Reject, and Zeroed is true for every gradient.
func TestRejectIsAnOutcome(t *testing.T) {
	for _, isLagging := range []bool{false, true} {
		commtest.OnDevices(t, devices(2, isLagging), nil, func(pg *comm.ProcessGroup) error {
			r := must.New(New(t.Context(), pg, params(), nil))
			e, unfit := engine{pg, r}, errors.New("unfit")
			for pass := range 3 {
				var lacks []int
				if pass == 1 && pg.Rank() == 0 {
					lacks = []int{0}
				}
				err := e.pass(true, 1, lacks...)
				if pass == 2 {
					if got, gerr := e.all(0); err != nil || got != 1 || gerr != nil {
						return fmt.Errorf("pass %d: %w, average %v, %w", pass, err, got, gerr)
					}
					continue
				}
				if err := r.Reject(unfit); !errors.Is(err, unfit) || !errors.Is(r.Err(), unfit) || errors.Is(err, device.ErrSkipped) != (pass == 1) {
					return fmt.Errorf("pass %d: rejected with %v, Err is %v", pass, err, r.Err())
				}
				if r.Pending() || isWritten(r, 0) || isWritten(r, 3) {
					return fmt.Errorf("pass %d: pending %v, zeroed %v, %v", pass, r.Pending(), !isWritten(r, 0), !isWritten(r, 3))
				}
			}
			if s := r.Stats(); s.Passes != 3 || s.Skipped != 2 {
				return fmt.Errorf("statistics %+v, want 2 of 3 passes skipped", s)
			}
			return nil
		})
	}
}
