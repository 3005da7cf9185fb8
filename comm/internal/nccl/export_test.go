//go:build cgo && linux

package nccl

import (
	"errors"
	"math"

	"github.com/goddp/goddp/internal/backend"
)

// MaxSmallBytes returns the largest size of a group's small all-reduces, in bytes.
func MaxSmallBytes(b backend.Backend) int { return b.(*Group).small.most() }

// Narrow returns why a group does not use wide lines, or nil.
func Narrow(b backend.Backend) error { return b.(*Group).small.narrow }

// SmallAllReduceDisabled returns why a group uses NCCL for small all-reduces, or nil.
func SmallAllReduceDisabled(b backend.Backend) error {
	if s := b.(*Group).small; s != nil {
		return s.disabled
	}
	return errors.New("the ranks are too many, or too far from each other")
}

// UseUpCallNumbers leaves one call number for small all-reduces.
func UseUpCallNumbers(b backend.Backend) { b.(*Group).small.args.call = math.MaxUint32 - 1 }

// DeferredFrees returns the number of allocations of a group's device that are to be freed.
func DeferredFrees(b backend.Backend) int {
	m := b.(*Group).memory
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.deferred)
}

// AwaitAborts waits for the communicators that are aborted in the background.
func AwaitAborts(b backend.Backend) { b.(*Group).memory.ending.Wait() }
