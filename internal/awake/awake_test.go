package awake

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// If the process is not suspended, a timeout has its nominal length, also if that is no
// multiple of a part.
func TestTimeoutIsAsLongAsItSays(t *testing.T) {
	cause := errors.New("enough")
	for _, d := range []time.Duration{0, 5, time.Second, 1234567891, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			ctx, cancel := WithTimeoutCause(t.Context(), d, cause)
			defer cancel()
			<-ctx.Done()
			if took := time.Since(start); took != d {
				t.Errorf("ended after %v, want %v", took, d)
			}
			if err := context.Cause(ctx); !errors.Is(err, cause) || !errors.Is(err, context.DeadlineExceeded) || err.Error() != "enough" {
				t.Errorf("ended with %v", err)
			}
		})
	}
}

// A suspension ends one part of a timeout: when the process continues, the timer of that part fires, and the other parts
// have their length.
func TestASuspensionEndsOnePart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var took time.Duration
		start := time.Now()
		timer := AfterFunc(parts*time.Second, func() { took = time.Since(start) })
		for range 3 {
			timer.next() // as after a suspension
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if want := (parts - 3) * time.Second; took != want {
			t.Errorf("after three suspensions the timeout took %v, want %v", took, want)
		}
	})
}

func TestStopKeepsTheFunctionFromBeingCalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		timer := AfterFunc(time.Second, func() { calls++ })
		time.Sleep(999 * time.Millisecond)
		if !timer.Stop() || timer.Stop() {
			t.Error("Stop does not tell the first call from the second")
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if calls != 0 {
			t.Errorf("%d calls", calls)
		}
		timer = AfterFunc(time.Second, func() { calls++ })
		time.Sleep(time.Hour)
		synctest.Wait()
		if timer.Stop() || calls != 1 {
			t.Errorf("%d calls, and Stop says that there was none", calls)
		}
	})
}

func TestParentEndsTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		why := errors.New("why")
		parent, end := context.WithCancelCause(t.Context())
		ctx, cancel := WithTimeout(parent, time.Second)
		defer cancel()
		end(why)
		<-ctx.Done()
		if context.Cause(ctx) != why {
			t.Errorf("ended with %v", context.Cause(ctx))
		}
	})
}

func TestNotice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		stop := Notice(time.Second, func() { calls++ })
		time.Sleep(time.Second / 2)
		stop()
		time.Sleep(time.Second)
		if calls != 0 {
			t.Errorf("stopped in time, it called f %d times", calls)
		}

		hasReturned := false
		stop = Notice(time.Second, func() {
			time.Sleep(time.Second)
			calls, hasReturned = calls+1, true
		})
		time.Sleep(3 * time.Second / 2) // f runs
		stop()
		if calls != 1 || !hasReturned {
			t.Errorf("stop returned after %d calls, f had returned: %v", calls, hasReturned)
		}
	})
}
