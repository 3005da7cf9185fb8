package backend_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/goddp/goddp/device"
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
	fp := backend.Fingerprint{Seq: 3, Kind: backend.AllReduce, DType: device.Float32, Count: 5}
	for _, cause := range []error{
		&backend.CallError{Rank: 2, Call: fp, Name: "bucket 1", Err: &backend.TimeoutError{After: time.Second, State: backend.Running, Waiting: []int{1}}},
		&backend.CallError{Rank: 2, Call: fp, Err: &backend.MismatchError{Rank: 2, Peer: 1, Mine: fp, Theirs: backend.Fingerprint{Kind: backend.Barrier}}},
		&backend.PeerLostError{Peer: 4},
		&backend.PeerLostError{Peer: 4, Left: true},
		&backend.PeerLostError{Peer: 4, Err: errors.New("connection reset")},
	} {
		got := received(2, cause)
		if got.Error() != cause.Error() {
			t.Errorf("got %v, want %v", got, cause)
		}
		for _, kind := range []error{backend.ErrTimeout, backend.ErrPeerLost, backend.ErrAborted} {
			if errors.Is(got, kind) != errors.Is(cause, kind) {
				t.Errorf("%v: being %v is %v", got, kind, errors.Is(got, kind))
			}
		}
	}
	for want, cause := range map[string]error{
		"process group aborted: by rank 2: enough":                                                 errors.New("enough"),
		"process group aborted: by rank 4: too much":                                               &backend.AbortedError{By: 4, Err: errors.New("too much")}, // reported again
		"rank 2: AllReduce #3(sum, float32, 5 elements): process group aborted: no sum":            &backend.CallError{Rank: 2, Call: fp, Err: errors.New("no sum")},
		"rank 4: AllReduce #3(sum, float32, 5 elements): process group aborted: by rank 2: no sum": &backend.CallError{Rank: 4, Call: fp, Err: errors.New("no sum")},
	} {
		if err := received(2, cause); !errors.Is(err, backend.ErrAborted) || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	for kind, text := range map[error]string{backend.ErrTimeout: "timed out: elsewhere", backend.ErrPeerLost: "peer lost: elsewhere"} {
		err := fmt.Errorf("%w: elsewhere", kind)
		for range 2 { // the second time, a rank reports the error that it received
			if err = received(2, err); !errors.Is(err, kind) || !errors.Is(err, backend.ErrAborted) || err.Error() != "process group aborted: by rank 2: "+text {
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
		&backend.CallError{Rank: 2, Name: long, Err: &backend.TimeoutError{Diagnosis: long}},
		&backend.PeerLostError{Peer: 1, Err: errors.New(long)},
		&backend.MismatchError{Rank: 2, Peer: 1, Mine: backend.Fingerprint{Seq: 7}, All: make([]backend.Fingerprint, 5000)},
	} {
		if f := backend.Describe(cause); len(f.Detail)+len(f.Text) > limit {
			t.Errorf("%.60v: described in %d and %d bytes, at limit %d", cause, len(f.Text), len(f.Detail), limit)
		}
		got := received(2, cause)
		for _, kind := range []error{backend.ErrTimeout, backend.ErrPeerLost} {
			if errors.Is(got, kind) != errors.Is(cause, kind) {
				t.Errorf("%.60v: being %v is %v", got, kind, errors.Is(got, kind))
			}
		}
		var m *backend.MismatchError
		if want := errors.As(cause, &m); errors.As(got, &m) != want || want && m.Mine.Seq != 7 {
			t.Errorf("%.60v became %.60v", cause, got)
		}
	}
}

// Cause must decode arbitrary bytes without a panic. Encoding and decoding its result again must
// not change the text.
func FuzzCause(f *testing.F) {
	for _, cause := range []error{
		errors.New("enough"),
		&backend.CallError{Err: &backend.TimeoutError{Waiting: []int{1}, Diagnosis: "why"}},
		&backend.AbortedError{By: 2, Err: &backend.UsageError{Rank: 2, Call: "Send", Msg: "to itself"}},
		&backend.MismatchError{All: make([]backend.Fingerprint, 3)},
		&backend.PeerLostError{Peer: 1, Left: true},
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
