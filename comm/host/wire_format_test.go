package host

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/goddp/goddp/comm/backend"
	"github.com/goddp/goddp/device"
)

// TestCard encodes a card and reads it back.
func TestCard(t *testing.T) {
	want := card{
		print: backend.Fingerprint{Seq: 1 << 40, Kind: backend.Reduce, Op: backend.Max, DType: device.BFloat16, Count: 1 << 33, Root: 513},
		given: 77, counts: 1 << 63, src: ref{segment: 5, offset: 6}, dst: ref{segment: 7, offset: 8}, payload: make([]byte, 9),
	}
	b := make([]byte, cardSize)
	want.encode(b)
	got, payload := decodeCard(b)
	if got.print != want.print || got.given != want.given || got.counts != want.counts || payload != 9 ||
		got.src.segment != 5 || got.src.offset != 6 || got.dst.segment != 7 || got.dst.offset != 8 {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestNotice tells causes on and checks what arrives.
func TestNotice(t *testing.T) {
	fp := backend.Fingerprint{Seq: 3, Kind: backend.AllReduce, DType: device.Float32, Count: 5}
	for _, cause := range []error{
		&backend.CallError{Rank: 2, Call: fp, Name: "bucket 1", Err: &backend.TimeoutError{After: time.Second, State: backend.Running, Waiting: []int{1}}},
		&backend.CallError{Rank: 2, Call: fp, Err: &backend.MismatchError{Rank: 2, Peer: 1, Mine: fp, Theirs: backend.Fingerprint{Kind: backend.Barrier}}},
		&backend.PeerLostError{Peer: 4},
		&backend.PeerLostError{Peer: 4, Left: true},
		&backend.PeerLostError{Peer: 4, Err: errors.New("connection reset")},
	} {
		n, err := decodeNotice(toNotice(2, cause).encode())
		if err != nil {
			t.Fatal(err)
		}
		got := n.err()
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
		"process group aborted: by rank 4: too much":                                               &backend.AbortedError{By: 4, Err: errors.New("too much")}, // told on
		"rank 2: AllReduce #3(sum, float32, 5 elements): process group aborted: no sum":            &backend.CallError{Rank: 2, Call: fp, Err: errors.New("no sum")},
		"rank 4: AllReduce #3(sum, float32, 5 elements): process group aborted: by rank 2: no sum": &backend.CallError{Rank: 4, Call: fp, Err: errors.New("no sum")},
	} {
		n, _ := decodeNotice(toNotice(2, cause).encode())
		if err := n.err(); !errors.Is(err, backend.ErrAborted) || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	for kind, text := range map[error]string{backend.ErrTimeout: "timed out: elsewhere", backend.ErrPeerLost: "peer lost: elsewhere"} {
		err := fmt.Errorf("%w: elsewhere", kind)
		for range 2 { // and told on
			n, _ := decodeNotice(toNotice(2, err).encode())
			if err = n.err(); !errors.Is(err, kind) || !errors.Is(err, backend.ErrAborted) || err.Error() != "process group aborted: by rank 2: "+text {
				t.Errorf("got %v, want %v, told by rank 2", err, kind)
			}
		}
	}
}

// FuzzControl reads frames of a peer's that may be anything: an error at
// worst, and no more memory than a frame may have.
func FuzzControl(f *testing.F) {
	f.Add(frame(frameBye, nil))
	f.Add(frame(frameBroke, toNotice(1, errors.New("enough")).encode()))
	f.Add(frame(frameSegment, make([]byte, 16)))
	f.Add(frame(frameRetire, make([]byte, 8)))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 2})
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		l := newLink(1)
		for {
			kind, body, err := readFrame(r)
			if err != nil {
				return
			}
			if len(body) > maxFrame {
				t.Fatalf("frame of %d bytes", len(body))
			}
			if l.handle(kind, body, func(err error) { _ = err.Error() }) != nil {
				return
			}
		}
	})
}

// TestTurns runs tasks of a lane in their order and ends it.
func TestTurns(t *testing.T) {
	l := newLane()
	tasks := []*task{{}, {}, {}}
	ran := make(chan *task, len(tasks))
	over := make(chan struct{})
	go func() {
		defer close(over)
		l.loop(func(t *task) { ran <- t })
	}()
	for _, k := range tasks {
		l.put(k)
	}
	l.end()
	select {
	case <-over:
	case <-time.After(10 * time.Second):
		t.Fatal("the lane does not end")
	}
	for i, k := range tasks {
		if got := <-ran; got != k {
			t.Errorf("task %d ran out of turn", i)
		}
	}
}
