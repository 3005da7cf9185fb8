//go:build cgo && linux

package nccl

import (
	"errors"
	"math"

	"github.com/goddp/goddp/internal/backend"
)

// OneShotMost is how many bytes a one-shot all-reduce takes at most.
func OneShotMost(ranks int) int { return oneShotLines(ranks) * lineBytes }

// WithoutOneShot is why a group has no one-shot all-reduces, nil if it has.
func WithoutOneShot(b backend.Backend) error {
	if s := b.(*Group).shot; s != nil {
		return s.without
	}
	return errors.New("the ranks are too many, or too far from each other")
}

// UseUp leaves one number for one-shot all-reduces.
func UseUp(b backend.Backend) { b.(*Group).shot.args.call = math.MaxUint32 - 1 }

// Buried is how much memory of a group's device awaits being given back.
func Buried(b backend.Backend) int {
	m := b.(*Group).memory
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.dead)
}
