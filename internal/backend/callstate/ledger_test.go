package callstate_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/backend/callstate"
	"github.com/goddp/goddp/internal/coordinator"
	"github.com/goddp/goddp/internal/coordinator/coordinatortest"
)

func TestBreak(t *testing.T) {
	control := coordinatortest.Ranks(t, 2)[1]
	l := callstate.New(control)
	if err := errors.Join(l.Admit(), l.Admit()); err != nil {
		t.Fatal(err)
	}
	mine, other := &backend.Call{Kind: backend.Barrier, Seq: 1}, &backend.Call{Kind: backend.Barrier, Seq: 2, Name: "other"}
	reason := errors.New("a reason")
	cause := l.Failure(mine, reason)
	if !l.Break(cause) || l.Break(errors.New("a later one")) {
		t.Error("the first cause does not stay")
	}
	if err := l.Admit(); err != cause || l.Pending() != 2 {
		t.Errorf("a call is admitted with %v, %d pending; want the cause, and 2", err, l.Pending())
	}
	if l.Context().Err() != nil {
		t.Error("the context ended before the peers were told")
	}
	l.Stop(cause)
	if context.Cause(l.Context()) != cause {
		t.Errorf("the context ended with %v", context.Cause(l.Context()))
	}
	if err := l.Concerning(mine); err != cause {
		t.Errorf("%v, want the cause as it is", err)
	}
	var call *backend.CallError
	if err := l.Concerning(other); !errors.As(err, &call) || call.Name != "other" || call.Rank != 1 || !errors.Is(err, reason) {
		t.Errorf("%v, want the other call's error, with the cause in it", err)
	}
	// The same call of another rank, whose failure broke this rank's group.
	far := callstate.New(control)
	far.Break(&backend.CallError{Rank: 0, Call: mine.Fingerprint(), Err: reason})
	if err := far.Concerning(mine); !errors.As(err, &call) || call.Rank != 1 || !strings.Contains(err.Error(), "rank 0: ") {
		t.Errorf("%v, want this rank's error for rank 0's", err)
	}
}

func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := callstate.New(coordinatortest.Ranks(t, 1)[0])
		l.Admit()
		l.Admit()
		if !l.Close() || l.Close() {
			t.Error("not closed once")
		}
		if err := l.Admit(); err != backend.ErrClosed {
			t.Errorf("%v, want that the group is closed", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := l.Drain(ctx); !errors.Is(err, backend.ErrClosed) || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "2 calls") {
			t.Errorf("%v, want that it took too long, with 2 calls", err)
		}
		drained := make(chan error)
		go func() { drained <- l.Drain(t.Context()) }()
		l.End()
		synctest.Wait()
		select {
		case err := <-drained:
			t.Fatalf("drained with a call pending: %v", err)
		default:
		}
		l.End()
		if err := <-drained; err != nil {
			t.Error(err)
		}
		if err := l.Drain(t.Context()); err != nil {
			t.Errorf("idle: %v", err)
		}
		if cause := l.Settle(); cause != nil || l.Break(errors.New("too late")) || l.Cause() != nil {
			t.Errorf("settled with %v, then broke with %v", cause, l.Cause())
		}
	})
}

// A rank's report comes back to it as its own error, and to the others in words. What the program
// wishes breaks its own group alone.
func TestReport(t *testing.T) {
	for _, c := range []struct {
		cause    error
		told     string
		confined bool
	}{
		{&backend.TimeoutError{After: time.Second}, "timed out after 1s while queued", false},
		{fmt.Errorf("%w: enough", backend.ErrAborted), "process group aborted: by rank 0: enough", true},
	} {
		var part, all [2]*callstate.Ledger
		var groups [2]*coordinator.Group
		ranks := coordinatortest.Ranks(t, 2)
		var wg sync.WaitGroup
		for r, root := range ranks {
			wg.Go(func() {
				g, _, err := root.Make(t.Context(), "part", []int{0, 1}, nil)
				if err == nil {
					_, err = g.Gather(t.Context(), coordinator.ReadyKey, nil)
				}
				if err != nil {
					t.Error(err)
					return
				}
				groups[r], part[r], all[r] = g, callstate.New(g), callstate.New(root)
			})
		}
		wg.Wait()
		if part[0].Decided() != nil {
			t.Error("something is decided before anything was reported")
		}
		part[0].Report(c.cause)
		part[0].Report(errors.New("a second cause"))
		for r, g := range groups {
			<-g.Failed()
			part[r].AwaitSettled()
			err := part[r].Decided()
			if r == 0 && err != c.cause || r == 1 && (err == nil || err.Error() != c.told) {
				t.Errorf("rank %d: %v, want %q", r, err, c.told)
			}
			if broke := all[r].Decided() != nil; broke == c.confined {
				t.Errorf("%v: the group of all ranks broke on rank %d: %v", c.cause, r, broke)
			}
		}
	}
}
