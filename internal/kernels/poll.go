package kernels

import (
	"context"
	"runtime"
	"time"
)

// Unbounded is the context of a wait for a stream that other deadlines bound: a stream runs its work in order, and a
// collective in it ends by its group's timeout. It never ends.
var Unbounded = context.Background()

// Bounds of Poll. Each training step ends with a wait, so the wait must not add to the step's time:
// for spin, longer than common steps, Poll does not sleep at all, and afterwards it adds less than a
// hundredth. Yielding to another goroutine wakes a thread, and this goroutine may then continue on
// another core with cold caches, so Poll first yields after yield, and then whenever the wait has
// doubled.
const (
	spin     = 10 * time.Millisecond
	yield    = 200 * time.Microsecond
	maxPause = 200 * time.Microsecond
)

// Poll calls done until it returns true or an error, or ctx ends. The host waits for a device this way
// because a wait inside a driver could be interrupted neither by a deadline nor by an abort. Poll first
// calls done without a pause, yielding now and then, and later more and more rarely.
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
