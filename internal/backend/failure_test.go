package backend_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goddp/goddp/comm/failure"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/coordinator"
)

// received returns the error that other ranks get when rank reporter reports cause.
func received(reporter int, cause error) error {
	f := backend.Describe(cause)
	f.Reporter = reporter
	return backend.Cause(f)
}

// The error that other ranks get has the text of the reported one and matches the same sentinels.
func TestCauseReachesOtherRanks(t *testing.T) {
	const fp = "AllReduce #3(sum, float32, 5 elements)"
	for _, cause := range []error{
		&failure.CallError{Rank: 2, Call: fp, Name: "bucket 1", Err: &failure.TimeoutError{After: time.Second, Running: true, Waiting: []int{1}}},
		&failure.CallError{Rank: 2, Call: fp, Err: &failure.MismatchError{Rank: 2, Peer: 1, Mine: fp, Theirs: "Barrier"}},
		&failure.PeerLostError{Peer: 4},
		&failure.PeerLostError{Peer: 4, Left: true},
		&failure.PeerLostError{Peer: 4, Err: errors.New("connection reset")},
	} {
		got := received(2, cause)
		if got.Error() != cause.Error() {
			t.Errorf("got %v, want %v", got, cause)
		}
		for _, kind := range []error{failure.ErrTimeout, failure.ErrPeerLost, failure.ErrAborted} {
			if errors.Is(got, kind) != errors.Is(cause, kind) {
				t.Errorf("%v: being %v is %v", got, kind, errors.Is(got, kind))
			}
		}
	}
	for want, cause := range map[string]error{
		"process group aborted: by rank 2: enough":                                                 errors.New("enough"),
		"process group aborted: by rank 4: too much":                                               &failure.AbortedError{By: 4, Err: errors.New("too much")}, // reported again
		"rank 2: AllReduce #3(sum, float32, 5 elements): process group aborted: no sum":            &failure.CallError{Rank: 2, Call: fp, Err: errors.New("no sum")},
		"rank 4: AllReduce #3(sum, float32, 5 elements): process group aborted: by rank 2: no sum": &failure.CallError{Rank: 4, Call: fp, Err: errors.New("no sum")},
	} {
		if err := received(2, cause); !errors.Is(err, failure.ErrAborted) || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	for kind, text := range map[error]string{failure.ErrTimeout: "timed out: elsewhere", failure.ErrPeerLost: "peer lost: elsewhere"} {
		err := fmt.Errorf("%w: elsewhere", kind)
		for range 2 { // the second time, a rank reports the error that it received
			if err = received(2, err); !errors.Is(err, kind) || !errors.Is(err, failure.ErrAborted) || err.Error() != "process group aborted: by rank 2: "+text {
				t.Errorf("got %v, want %v, reported by rank 2", err, kind)
			}
		}
	}
}

// The description of a cause with very long texts stays within the bound. The decoded error still
// matches the same sentinels.
func TestDescribeBoundsItsSize(t *testing.T) {
	const limit = 256 << 10
	long := strings.Repeat("\x00", limit) // JSON encodes each byte as six
	for _, cause := range []error{
		errors.New(long),
		&failure.CallError{Rank: 2, Name: long, Err: &failure.TimeoutError{Diagnosis: long}},
		&failure.PeerLostError{Peer: 1, Err: errors.New(long)},
		&failure.MismatchError{Rank: 2, Peer: 1, Mine: "Barrier #7", All: slices.Repeat([]string{"AllReduce #7(sum, float32, 12345 elements)"}, 9000)},
	} {
		if f := backend.Describe(cause); len(f.Detail)+len(f.Text) > limit {
			t.Errorf("%.60v: described in %d and %d bytes, at limit %d", cause, len(f.Text), len(f.Detail), limit)
		}
		got := received(2, cause)
		for _, kind := range []error{failure.ErrTimeout, failure.ErrPeerLost} {
			if errors.Is(got, kind) != errors.Is(cause, kind) {
				t.Errorf("%.60v: being %v is %v", got, kind, errors.Is(got, kind))
			}
		}
		var m *failure.MismatchError
		if want := errors.As(cause, &m); errors.As(got, &m) != want || want && m.Mine != "Barrier #7" {
			t.Errorf("%.60v became %.60v", cause, got)
		}
	}
}

// Cause must decode arbitrary bytes without a panic. Encoding and decoding its result again must
// not change the text.
func FuzzCause(f *testing.F) {
	for _, cause := range []error{
		errors.New("enough"),
		&failure.CallError{Err: &failure.TimeoutError{Waiting: []int{1}, Diagnosis: "why"}},
		&failure.AbortedError{By: 2, Err: &failure.UsageError{Rank: 2, Call: "Send", Msg: "to itself"}},
		&failure.MismatchError{All: make([]string, 3)},
		&failure.PeerLostError{Peer: 1, Left: true},
	} {
		f.Add(backend.Describe(cause).Detail)
	}
	f.Add([]byte(`{"Lost":{"Peer":-1},"Timeout":{"Waiting":[2000000000],"State":99},"Call":{"Rank":2000000000,"Call":{"Kind":255,"Op":255,"DType":255}}}`))
	f.Add([]byte(`{"Mismatch":{"All":[{},null]},"Kind":"timeout"}`))
	f.Add([]byte(`{"Timeout":{"State":200}}`))
	f.Fuzz(func(t *testing.T, detail []byte) {
		cause := backend.Cause(&coordinator.Failure{Reporter: 1, Detail: detail})
		again := received(1, cause)
		if f := backend.Describe(cause); len(f.Text) < 4<<10 && again.Error() != cause.Error() {
			t.Fatalf("reported again: %v; received as %v", again, cause)
		}
	})
}
