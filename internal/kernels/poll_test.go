package kernels

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestPollAsksUntilDone(t *testing.T) {
	bad := errors.New("bad")
	asked := 0
	err := Poll(t.Context(), func() (bool, error) {
		if asked++; asked == 3 {
			return false, bad
		}
		return false, nil
	})
	if err != bad || asked != 3 {
		t.Errorf("Poll asked %d times and returned %v, want 3 and %v", asked, err, bad)
	}

	// Poll continues to call done after it has started to sleep.
	start := time.Now()
	if err := Poll(t.Context(), func() (bool, error) { return time.Since(start) > 50*time.Millisecond, nil }); err != nil {
		t.Error(err)
	}

	why := errors.New("why")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if err := Poll(ctx, func() (bool, error) { return true, nil }); err != nil {
		t.Errorf("what is done is done, whatever the context: %v", err)
	}
	if err := Poll(ctx, func() (bool, error) { return false, nil }); err != why {
		t.Errorf("Poll returned %v, want the context's cause %v", err, why)
	}
}
