package host

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
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

// A cause of any length fits into a frame, and stays of its kind.
func TestNoticeFitsIntoFrame(t *testing.T) {
	long := strings.Repeat("\x00", maxFrame) // six bytes each in JSON
	for _, cause := range []error{
		errors.New(long),
		&backend.CallError{Rank: 2, Name: long, Err: &backend.TimeoutError{Diagnosis: long}},
		&backend.PeerLostError{Peer: 1, Err: errors.New(long)},
		&backend.MismatchError{Rank: 2, Peer: 1, Mine: backend.Fingerprint{Seq: 7}, All: make([]backend.Fingerprint, 5000)},
	} {
		body := toNotice(2, cause).encode()
		if len(body) > maxFrame {
			t.Errorf("%.60v: a body of %d bytes, at most %d", cause, len(body), maxFrame)
		}
		n, err := decodeNotice(body)
		if err != nil {
			t.Fatal(err)
		}
		got := n.err()
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

// FuzzControl reads frames of a peer's that may be anything: an error at worst, no
// more memory than a frame may have, and a frame that is handled encodes to itself.
func FuzzControl(f *testing.F) {
	f.Add(frame(frameBye, nil))
	f.Add(frame(frameBroke, toNotice(1, errors.New("enough")).encode()))
	f.Add(frame(frameBroke, toNotice(1, &backend.CallError{Err: &backend.TimeoutError{Waiting: []int{1}, Diagnosis: "why"}}).encode()))
	f.Add(frame(frameBroke, []byte(`{"Rank":2000000000,"Lost":{"Peer":-1},"Timeout":{"Waiting":[2000000000],"State":99},"Call":{"Kind":255,"Op":255,"DType":255}}`)))
	f.Add(frame(frameBroke, []byte(`{"Mismatch":{"All":[`+strings.Repeat("{},", 20000)+`{}]}}`)))
	f.Add(frame(frameBroke, []byte(`{"Timeout":{"Waiting":[`+strings.Repeat("0,", 20000)+`0]}}`)))
	f.Add(frame(frameSegment, make([]byte, 16)))
	f.Add(frame(frameRetire, make([]byte, 8)))
	f.Add(frame(frameAsk, nil))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 2})
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		l := newLink(1)
		l.conns[laneControl] = discarded{}
		for rest := b; ; {
			var kind byte
			var body []byte
			var err error
			taken := allocated(func() { kind, body, err = readFrame(r) })
			if most := uint64(2*maxFrame + 4<<10); taken > most {
				t.Fatalf("%d bytes taken to read a frame, at most %d", taken, most)
			}
			if err != nil {
				return
			}
			if again := frame(kind, body); !bytes.HasPrefix(rest, again) {
				t.Fatalf("frame %x came from %x", again, rest[:min(len(rest), len(again))])
			}
			rest = rest[5+len(body):]
			var handled error
			taken = allocated(func() { handled = l.handle(kind, body, noWaits, func(err error) { _ = err.Error() }) })
			if most := uint64(64*maxFrame + 64*len(body)); taken > most {
				t.Fatalf("%d bytes taken to handle a frame of %d, at most %d", taken, len(body), most)
			}
			if handled != nil {
				return
			}
			if n, err := decodeNotice(body); kind == frameBroke && err == nil {
				again, err := decodeNotice(n.encode())
				if err != nil || len(n.encode()) <= maxFrame && len(n.marshal()) <= maxFrame && again.err().Error() != n.err().Error() {
					t.Fatalf("told on: %v, %v; came as %v", again.err(), err, n.err())
				}
			}
		}
	})
}

// discarded is a connection that takes what is written to it.
type discarded struct{ net.Conn }

func (discarded) Write(b []byte) (int, error)      { return len(b), nil }
func (discarded) SetWriteDeadline(time.Time) error { return nil }

// allocated is the memory that f takes, in bytes.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// FuzzCard decodes arbitrary bytes as a peer's card. If the card passes the plan's check,
// its payload has every byte that the plan reads. Encoding any decoded card gives the
// original bytes.
func FuzzCard(f *testing.F) {
	const rank, size, count = 0, 2, 6
	calls := func() []*backend.Call {
		var all []*backend.Call
		for kind := backend.AllReduce; kind <= backend.AllToAll; kind++ {
			tensor := func(n int) device.Tensor { return device.NewTensor(goBuffer(4*n), device.Float32, n) }
			all = append(all, &backend.Call{Seq: 1, Kind: kind, Src: tensor(count), Dst: tensor(size * count), Root: 1})
		}
		all = append(all, &backend.Call{Seq: 1, Kind: backend.AllGather, Counts: []int{4, 2},
			Src: device.NewTensor(goBuffer(16), device.Float32, 4), Dst: device.NewTensor(goBuffer(24), device.Float32, 6)})
		return all
	}
	for i, c := range calls() {
		own := newPlan(c, rank, size, &blocks{}).card()
		for _, payload := range []int{len(own.payload), 0, 1 << 10} {
			b := make([]byte, cardSize)
			own.encode(b)
			binary.LittleEndian.PutUint64(b[64:], uint64(payload))
			f.Add(append(b, make([]byte, payload)...), byte(i))
		}
	}
	f.Add(bytes.Repeat([]byte{0xff}, 200), byte(0))
	f.Fuzz(func(t *testing.T, b []byte, which byte) {
		if len(b) < cardSize {
			return
		}
		c, payload := decodeCard(b[:cardSize])
		again := make([]byte, cardSize)
		full := c
		full.payload = make([]byte, min(max(payload, 0), inlineMax))
		full.encode(again)
		again[11] = b[11] // not used
		if payload == len(full.payload) && !bytes.Equal(again, b[:cardSize]) {
			t.Fatalf("%x encodes to %x", b[:cardSize], again)
		}
		if payload < 0 || payload > inlineMax || payload > len(b)-cardSize {
			return // as the boards and the wire do
		}
		c.payload = b[cardSize:][:payload:payload]
		all := calls()
		p := newPlan(all[int(which)%len(all)], rank, size, &blocks{})
		cards := []card{p.card(), c}
		if err := p.check(cards); err != nil {
			_ = err.Error()
			return
		}
		if p.inlines() {
			p.take(0, p.block, func(s int) []byte {
				if !p.gives(s) {
					return nil
				}
				from, to := p.source(s, rank, 0, p.block)
				return cards[s].payload[from:to]
			})
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
