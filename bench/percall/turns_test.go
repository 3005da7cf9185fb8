package main

import (
	"context"
	"testing"
	"time"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit/commtest"
)

// TestSideThatSumsNothingIsDetected checks a side whose calls do nothing.
func TestSideThatSumsNothingIsDetected(t *testing.T) {
	idle := side{"idle", func(context.Context, device.Tensor, int) (time.Duration, error) { return 1, nil }}
	commtest.OnGoroutines(t, 2, nil, func(pg *comm.ProcessGroup) error {
		buf, err := pg.Alloc(64)
		if err != nil {
			return err
		}
		x, b := device.NewTensor(buf, device.Float32, 16), &bench{pg: pg}
		if err := b.check(t.Context(), goddp(pg), x); err != nil {
			return err
		}
		const want = "element 0 of a sum of ones is 1, want 2"
		if err := b.check(t.Context(), idle, x); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
		return nil
	})
}
