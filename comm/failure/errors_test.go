package failure_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/goddp/goddp/comm/failure"
)

// An error names the aborting rank and the rank of the failed call: both if they differ, one if
// they are the same.
func TestErrorTextNamesWhoAborted(t *testing.T) {
	call := func(rank int, err error) error {
		return &failure.CallError{Rank: rank, Call: "Barrier #3", Name: "last", Err: err}
	}
	by := func(rank int, err error) error { return &failure.AbortedError{By: rank, Err: err} }
	reason := errors.New("enough")
	for _, c := range []struct {
		err  error
		want string
	}{
		{by(0, reason), "process group aborted: by rank 0: enough"},
		{by(0, failure.ErrAborted), "process group aborted: by rank 0"},
		{by(0, fmt.Errorf("%w: %w", failure.ErrAborted, reason)), "process group aborted: by rank 0: enough"},
		{by(0, call(0, reason)), "process group aborted: by rank 0: Barrier #3 last: enough"},
		{by(1, call(0, reason)), "process group aborted: by rank 1: rank 0: Barrier #3 last: enough"},
		{by(1, call(10, reason)), "process group aborted: by rank 1: rank 10: Barrier #3 last: enough"},
		{call(0, by(0, reason)), "rank 0: Barrier #3 last: process group aborted: enough"},
		{call(0, by(0, failure.ErrAborted)), "rank 0: Barrier #3 last: process group aborted"},
		{call(1, by(0, reason)), "rank 1: Barrier #3 last: process group aborted: by rank 0: enough"},
		{call(1, by(0, call(0, reason))), "rank 1: Barrier #3 last: process group aborted: by rank 0: Barrier #3 last: enough"},
	} {
		if c.err.Error() != c.want {
			t.Errorf("got %q, want %q", c.err, c.want)
		}
		if !errors.Is(c.err, failure.ErrAborted) {
			t.Errorf("%v is no ErrAborted", c.err)
		}
	}
	if !errors.Is(by(0, reason), reason) {
		t.Error("the reason is lost")
	}
}

// An AbsentError names ranks in a row by the first and the last one.
func TestAbsentErrorNamesTheRanks(t *testing.T) {
	const one = "timed out: rank 3 has not joined: it did not start, ended early, or cannot reach the store"
	const many = "timed out: ranks 0-999 have not joined: they did not start, ended early, or cannot reach the store"
	ranks := make([]int, 1000)
	for r := range ranks {
		ranks[r] = r
	}
	for want, absent := range map[string][]int{one: {3}, many: ranks} {
		err := &failure.AbsentError{Ranks: absent, Err: errors.New("timed out")}
		if err.Error() != want {
			t.Errorf("got %q, want %q", err, want)
		}
		if !errors.Is(err, failure.ErrTimeout) {
			t.Errorf("%v is no ErrTimeout", err)
		}
	}
}
