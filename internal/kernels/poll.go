package kernels

import (
	"context"
	"runtime"
	"time"
)

// Unbounded is a context that never ends, for waits for a stream. Other deadlines bound such a wait: a stream runs its
// work in order, and a collective on the stream ends by its group's timeout.
var Unbounded = context.Background()

// Bounds of Poll. Each training step ends with a wait, so the wait must not add to the step's time. For
// the time spin, which is longer than common steps, Poll does not sleep at all. After that it adds less
// than a hundredth. Yielding to another goroutine wakes a thread, and this goroutine may then continue on
// another core with cold caches. So Poll yields for the first time after the time yield, and then whenever
// the wait has doubled.
const (
	spin     = 10 * time.Millisecond
	yield    = 200 * time.Microsecond
	maxPause = 200 * time.Microsecond
)

// Poll calls the function done until it returns true or an error, or ctx ends. The host waits for a device
// this way because a wait inside a driver could be interrupted neither by a deadline nor by an abort. At
// first Poll calls done without a pause, and yields now and then. Later it calls done more and more rarely.
func Poll(ctx context.Context, done func() (bool, error)) error {
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
