package host

import (
	"bytes"
	"encoding/binary"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
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

// FuzzControl reads frames of a peer's that may be anything: an error at worst, no
// more memory than a frame may have, and a frame that is handled encodes to itself.
func FuzzControl(f *testing.F) {
	f.Add(frame(frameSegment, make([]byte, 16)))
	f.Add(frame(frameRetire, make([]byte, 8)))
	f.Add(frame(frameRetire, nil))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 2})
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		l := newLink(1)
		l.conns[laneShared] = discarded{}
		for rest := b; ; {
			var kind byte
			var body []byte
			var err error
			taken := allocated(func() { kind, body, err = readFrame(r) })
			if most := uint64(64 << 10); taken > most {
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
			taken = allocated(func() { handled = l.handle(kind, body) })
			if most := uint64(64 << 10); taken > most {
				t.Fatalf("%d bytes taken to handle a frame of %d, at most %d", taken, len(body), most)
			}
			if handled != nil {
				return
			}
		}
	})
}

// discarded is a connection that no descriptor comes with.
type discarded struct{ net.Conn }

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
	members := []int{0, 1}
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
		own := newPlan(c, rank, members, &blocks{}).card()
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
		p := newPlan(all[int(which)%len(all)], rank, members, &blocks{})
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
