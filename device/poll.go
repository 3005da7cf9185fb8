package device

import (
	"context"
	"runtime"
	"time"
)

// Bounds of Poll. A training step's end is waited for once in every step, so
// what the wait adds to it counts: none as long as steps commonly are, and
// then less than a hundredth.
const (
	spin     = 10 * time.Millisecond
	maxPause = 200 * time.Microsecond
)

// Poll asks done until it says so, fails, or ctx ends: how a host waits for
// what a device does. Nothing waits inside a driver, where neither a deadline
// nor an abort could reach it. It asks without a pause at first, letting other
// goroutines run, and then ever more rarely.
func Poll(ctx context.Context, done func() (bool, error)) error {
	for start := time.Now(); ; {
		if ok, err := done(); ok || err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if waited := time.Since(start); waited < spin {
			runtime.Gosched()
		} else {
			pause(min(waited/128, maxPause))
		}
	}
}
