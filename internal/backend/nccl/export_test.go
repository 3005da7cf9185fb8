//go:build cgo && linux

package nccl

import (
	"errors"
	"math"

	"github.com/goddp/goddp/internal/backend"
)

// MaxSmallBytes returns the largest size of a small all-reduce, in bytes.
func MaxSmallBytes(ranks int) int { return linesPerSlot(ranks) * lineBytes }

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
