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

	"github.com/goddp/goddp/comm/failure"
	"github.com/goddp/goddp/comm/internal/callstate"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/coordinator"
	"github.com/goddp/goddp/internal/testkit/coordinatortest"
)

func TestFirstCauseIsKept(t *testing.T) {
	control := coordinatortest.Ranks(t, 2)[1]
	state := callstate.New(t.Context(), control)
	if err := errors.Join(state.Admit(1), state.Admit(1)); err != nil {
		t.Fatal(err)
	}
	mine, other := &backend.Call{Kind: backend.Barrier, Seq: 1}, &backend.Call{Kind: backend.Barrier, Seq: 2, Name: "other"}
	reason := errors.New("a reason")
	cause := state.CallError(mine, reason)
	if !state.Break(cause) || state.Break(errors.New("a later one")) {
		t.Error("the first cause does not stay")
	}
	if err := state.Admit(1); err != cause || state.Pending() != 2 {
		t.Errorf("a call is admitted with %v, %d pending; want the cause, and 2", err, state.Pending())
	}
	if state.Context().Err() != nil {
		t.Error("the context ended before the peers knew")
	}
	state.Stop(cause)
	if context.Cause(state.Context()) != cause {
		t.Errorf("the context ended with %v", context.Cause(state.Context()))
	}
	if err := state.ErrorOf(mine); err != cause {
		t.Errorf("%v, want the cause as it is", err)
	}
	var call *failure.CallError
	if err := state.ErrorOf(other); !errors.As(err, &call) || call.Name != "other" || call.Rank != 1 || !errors.Is(err, reason) {
		t.Errorf("%v, want the other call's error, with the cause in it", err)
	}
	// The call that failed has the same fingerprint, but is a call of rank 0. Rank 1 gets an error of its own.
	far := callstate.New(t.Context(), control)
	far.Break(&failure.CallError{Rank: 0, Call: mine.Fingerprint().String(), Err: reason})
	if err := far.ErrorOf(mine); !errors.As(err, &call) || call.Rank != 1 || !strings.Contains(err.Error(), "rank 0: ") {
		t.Errorf("%v, want this rank's error for rank 0's", err)
	}
}

func TestDrainWaitsForPendingCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		state := callstate.New(t.Context(), coordinatortest.Ranks(t, 1)[0])
		state.Admit(1)
		state.Admit(1)
		if !state.Close() || state.Close() {
			t.Error("not closed once")
		}
		if err := state.Admit(1); err != failure.ErrClosed {
			t.Errorf("%v, want that the group is closed", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := state.Drain(ctx); !errors.Is(err, failure.ErrClosed) || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "2 calls") {
			t.Errorf("%v, want that it took too long, with 2 calls", err)
		}
		drained := make(chan error)
		go func() { drained <- state.Drain(t.Context()) }()
		state.End()
		synctest.Wait()
		select {
		case err := <-drained:
			t.Fatalf("drained with a call pending: %v", err)
		default:
		}
		state.End()
		if err := <-drained; err != nil {
			t.Error(err)
		}
		if err := state.Drain(t.Context()); err != nil {
			t.Errorf("drained: %v", err)
		}
		if cause := state.Finalize(); cause != nil || state.Break(errors.New("too late")) || state.Cause() != nil {
			t.Errorf("settled with %v, then broke with %v", cause, state.Cause())
		}
	})
}

// The reporting rank gets its own error value back, the other rank an error with the same text. A
// cause that comes from the program does not break the group of all ranks. A cause that was reported without
// the State comes first.
func TestReportReachesAllRanks(t *testing.T) {
	for _, c := range []struct {
		cause       error
		wantOnRank1 string
		confined    bool
		isOutside   bool
	}{
		{&failure.TimeoutError{After: time.Second}, "timed out after 1s while queued", false, false},
		{fmt.Errorf("%w: enough", failure.ErrAborted), "process group aborted: by rank 0: enough", true, false},
		{&failure.TimeoutError{After: time.Second}, "timed out after 1s while queued", false, true},
	} {
		var part, all [2]*callstate.State
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
				groups[r], part[r], all[r] = g, callstate.New(t.Context(), g), callstate.New(t.Context(), root)
			})
		}
		wg.Wait()
		if part[0].DecidedCause() != nil {
			t.Error("something is decided before anything was reported")
		}
		if c.isOutside {
			groups[0].Fail(backend.Describe(c.cause))
			part[0].Report(&failure.PeerLostError{Peer: 1})
		} else {
			part[0].Report(c.cause)
			part[0].Report(errors.New("a second cause"))
		}
		for r, g := range groups {
			<-g.Failed()
			part[r].AwaitAcknowledged()
			err := part[r].DecidedCause()
			if isOwn := r == 0 && !c.isOutside; isOwn && err != c.cause || !isOwn && (err == nil || err.Error() != c.wantOnRank1) {
				t.Errorf("rank %d: %v, want %q", r, err, c.wantOnRank1)
			}
			if broke := all[r].DecidedCause() != nil; broke == c.confined {
				t.Errorf("%v: the group of all ranks broke on rank %d: %v", c.cause, r, broke)
			}
		}
	}
}
