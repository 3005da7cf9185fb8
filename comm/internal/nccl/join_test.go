//go:build cgo && linux

package nccl_test

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goddp/goddp/comm/failure"
	"github.com/goddp/goddp/comm/internal/nccl"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/testkit/coordinatortest"
)

// One of three ranks does not join.
func TestEmulatedAbsentRankIsNamed(t *testing.T) {
	control(t)
	ranks := coordinatortest.Ranks(t, 3)
	_, errs := attempt(t, 2, func(r int, cfg *backend.Config, _ *nccl.Options) {
		cfg.Size, cfg.Control, cfg.Timeout = 3, ranks[r], time.Second
	})
	for r, err := range errs {
		var late *nccl.LateError
		if !errors.As(err, &late) || !slices.Equal(late.Ranks, []int{2}) || !errors.Is(err, failure.ErrTimeout) {
			t.Errorf("rank %d: %v, want that rank 2 has not joined", r, err)
		}
	}
}

// One rank, or NCCL on all ranks, is too slow. Every rank names the late ranks and the step.
func TestEmulatedLateRanksAreNamed(t *testing.T) {
	for name, c := range map[string]struct {
		fault   string
		device  func(d gpu, release <-chan struct{}) device.Device // of rank 1
		timeout time.Duration                                      // of rank 1, if not 0
		ranks   []int
		said    string
	}{
		"kernels": {
			device: func(d gpu, release <-chan struct{}) device.Device { return slowCompiler{d, release} },
			ranks:  []int{1}, said: "rank 1 has not made its device ready",
		},
		"kernels, on the rank that gives up first": {
			device:  func(d gpu, release <-chan struct{}) device.Device { return slowCompiler{d, release} },
			timeout: time.Second,
			ranks:   []int{1}, said: "rank 1 has not made its device ready",
		},
		"NCCL": {fault: "init 1", ranks: []int{0, 1, 2}, said: "none of 3 ranks has come out of ncclCommInitRankConfig; NCCL_DEBUG=INFO"},
	} {
		t.Run(name, func(t *testing.T) {
			control(t, c.fault)
			release := make(chan struct{})
			defer close(release)
			const timeout = 2 * time.Second
			at := time.Now()
			_, errs := attempt(t, 3, func(r int, cfg *backend.Config, _ *nccl.Options) {
				cfg.Timeout = timeout
				if r == 1 && c.device != nil {
					cfg.Device = c.device(cfg.Device.(gpu), release)
					cfg.Timeout = cmp.Or(c.timeout, cfg.Timeout)
				}
			})
			if took := time.Since(at); took > timeout+lateness {
				t.Errorf("took %v with a timeout of %v", took, timeout)
			}
			for r, err := range errs {
				var late *nccl.LateError
				var aborted *failure.AbortedError
				if !errors.As(err, &aborted) && (!errors.As(err, &late) || !slices.Equal(late.Ranks, c.ranks)) {
					t.Errorf("rank %d: %v, want that ranks %v are late", r, err, c.ranks)
				}
				if err == nil || !errors.Is(err, failure.ErrTimeout) && aborted == nil || strings.Count(err.Error(), c.said) != 1 {
					t.Errorf("rank %d: %v, want once: %s", r, err, c.said)
				}
			}
		})
	}
}

// slowCompiler is a GPU whose compiler does not return before release is closed.
type slowCompiler struct {
	gpu
	release <-chan struct{}
}

func (d slowCompiler) Compile(context.Context, string, string, ...string) ([]uintptr, error) {
	<-d.release
	return nil, errors.New("it took too long")
}
