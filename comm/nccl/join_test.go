//go:build cgo && linux

package nccl_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/goddp/goddp/comm/backend"
	"github.com/goddp/goddp/comm/nccl"
)

// TestAbsent makes a group to which one rank does not come.
func TestAbsent(t *testing.T) {
	control(t)
	_, errs := attempt(t, 2, func(_ int, cfg *backend.Config, _ *nccl.Options) { cfg.Size, cfg.Timeout = 3, 500*time.Millisecond })
	for r, err := range errs {
		var absent *backend.AbsentError
		if !errors.As(err, &absent) || !slices.Equal(absent.Ranks, []int{2}) {
			t.Errorf("rank %d: %v, want that rank 2 has not come", r, err)
		}
	}
}
