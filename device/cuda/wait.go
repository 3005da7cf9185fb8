//go:build cgo && linux

package cuda

import (
	"context"
	"runtime"
	"time"
)

// Bounds of waiting: it polls without a pause at first, because most work is
// short, and then ever more rarely, but so that what it adds can hide behind
// an optimizer's updates: a step's outcome is waited for in every step.
const (
	spin     = 100 * time.Microsecond
	maxPause = 200 * time.Microsecond
)

// await polls done until it says so, fails, or ctx ends. Nothing waits inside
// the driver, where neither a deadline nor an abort could reach it.
func await(ctx context.Context, done func() (bool, error)) error {
	start := time.Now()
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if waited := time.Since(start); waited < spin {
			runtime.Gosched()
		} else {
			time.Sleep(min(waited/32, maxPause))
		}
	}
}
