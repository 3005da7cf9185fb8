package poll

import (
	"context"
	"runtime"
	"time"
)

// Bounds of Poll. A training step's end is waited for once in every step, so
// what the wait adds to it counts: none as long as steps commonly are, and
// then less than a hundredth, but for a few yields. To let another goroutine run
// wakes a thread that looks for one, and this one may then go on elsewhere, with
// cold caches: that is done after yield first, and then whenever the wait has
// doubled.
const (
	spin     = 10 * time.Millisecond
	yield    = 200 * time.Microsecond
	maxPause = 200 * time.Microsecond
)

// Until asks done until it says so, fails, or ctx ends: how a host waits for
// what a device does. Nothing waits inside a driver, where neither a deadline
// nor an abort could reach it. It asks without a pause at first, letting other
// goroutines run now and then, and then ever more rarely.
func Until(ctx context.Context, done func() (bool, error)) error {
	start, next := time.Now(), yield
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		switch waited := time.Since(start); {
		case waited >= spin:
			pause(min(waited/128, maxPause))
		case waited >= next:
			next *= 2
			runtime.Gosched()
		}
	}
}
