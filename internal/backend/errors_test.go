package backend_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/goddp/goddp/internal/backend"
)

// An error names the aborting rank and the rank of the failed call: both if they differ, one if
// they are the same.
func TestErrorTextNamesWhoAborted(t *testing.T) {
	call := func(rank int, err error) error {
		return &backend.CallError{Rank: rank, Call: backend.Fingerprint{Kind: backend.Barrier, Seq: 3}, Name: "last", Err: err}
	}
	by := func(rank int, err error) error { return &backend.AbortedError{By: rank, Err: err} }
	reason := errors.New("enough")
	for _, c := range []struct {
		err  error
		want string
	}{
		{by(0, reason), "process group aborted: by rank 0: enough"},
		{by(0, backend.ErrAborted), "process group aborted: by rank 0"},
		{by(0, fmt.Errorf("%w: %w", backend.ErrAborted, reason)), "process group aborted: by rank 0: enough"},
		{by(0, call(0, reason)), "process group aborted: by rank 0: Barrier #3 last: enough"},
		{by(1, call(0, reason)), "process group aborted: by rank 1: rank 0: Barrier #3 last: enough"},
		{by(1, call(10, reason)), "process group aborted: by rank 1: rank 10: Barrier #3 last: enough"},
		{call(0, by(0, reason)), "rank 0: Barrier #3 last: process group aborted: enough"},
		{call(0, by(0, backend.ErrAborted)), "rank 0: Barrier #3 last: process group aborted"},
		{call(1, by(0, reason)), "rank 1: Barrier #3 last: process group aborted: by rank 0: enough"},
		{call(1, by(0, call(0, reason))), "rank 1: Barrier #3 last: process group aborted: by rank 0: Barrier #3 last: enough"},
	} {
		if c.err.Error() != c.want {
			t.Errorf("got %q, want %q", c.err, c.want)
		}
		if !errors.Is(c.err, backend.ErrAborted) {
			t.Errorf("%v is no ErrAborted", c.err)
		}
	}
	if !errors.Is(by(0, reason), reason) {
		t.Error("the reason is lost")
	}
}

// An AbsentError names ranks in a row by the first and the last one.
func TestAbsentErrorNamesTheRanks(t *testing.T) {
	const one = "timed out: rank 3 has not come: it did not start, ended before, or cannot reach the store"
	const many = "timed out: ranks 0-999 have not come: they did not start, ended before, or cannot reach the store"
	ranks := make([]int, 1000)
	for r := range ranks {
		ranks[r] = r
	}
	for want, absent := range map[string][]int{one: {3}, many: ranks} {
		err := &backend.AbsentError{Ranks: absent, Err: errors.New("timed out")}
		if err.Error() != want {
			t.Errorf("got %q, want %q", err, want)
		}
		if !errors.Is(err, backend.ErrTimeout) {
			t.Errorf("%v is no ErrTimeout", err)
		}
	}
}
