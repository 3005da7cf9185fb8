package host

import (
	"bytes"
	"encoding/binary"
	"net"
	"runtime"
	"testing"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
)

// A frame that is too large fails the connection with an error that says so.
func TestListenReportsTooLargeFrame(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	l := newPeerConn(1)
	l.conns[shmConn] = ours
	go theirs.Write(frame(frameRetire, make([]byte, maxFrame+1)))
	var got error
	l.listen(func(err error) { got = err })
	if want := frameSizeError(maxFrame + 1); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

// Reading and handling arbitrary frames must not panic or allocate much. A frame that was read
// encodes to the same bytes.
func FuzzFrames(f *testing.F) {
	f.Add(frame(frameSegment, make([]byte, 16)))
	f.Add(frame(frameRetire, make([]byte, 8)))
	f.Add(frame(frameRetire, nil))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 2})
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		l := newPeerConn(1)
		l.conns[shmConn] = discarded{}
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

// discarded is a connection that carries no file descriptors.
type discarded struct{ net.Conn }

// allocated returns the number of bytes that f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// FuzzHeader decodes arbitrary bytes as a peer's header. If the header passes the plan's check, its
// payload has every byte that the plan reads. Encoding a decoded header gives the original bytes.
func FuzzHeader(f *testing.F) {
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
		self := newPlan(c, rank, members, &reduceScratch{}).header()
		for _, payload := range []int{len(self.payload), 0, 1 << 10} {
			b := make([]byte, headerSize)
			self.encode(b)
			binary.LittleEndian.PutUint64(b[64:], uint64(payload))
			f.Add(append(b, make([]byte, payload)...), byte(i))
		}
	}
	f.Add(bytes.Repeat([]byte{0xff}, 200), byte(0))
	f.Fuzz(func(t *testing.T, b []byte, which byte) {
		if len(b) < headerSize {
			return
		}
		c, payload := decodeHeader(b[:headerSize])
		again := make([]byte, headerSize)
		full := c
		full.payload = make([]byte, min(max(payload, 0), maxInline))
		full.encode(again)
		again[11] = b[11] // an unused byte
		if payload == len(full.payload) && !bytes.Equal(again, b[:headerSize]) {
			t.Fatalf("%x encodes to %x", b[:headerSize], again)
		}
		if payload < 0 || payload > maxInline || payload > len(b)-headerSize {
			return // the networks reject it too
		}
		c.payload = b[headerSize:][:payload:payload]
		all := calls()
		p := newPlan(all[int(which)%len(all)], rank, members, &reduceScratch{})
		headers := []callHeader{p.header(), c}
		if err := p.checkHeaders(headers); err != nil {
			_ = err.Error()
			return
		}
		if p.isInline() {
			p.fillDst(0, p.maxBlock, func(s int) []byte {
				if !p.hasSrc(s) {
					return nil
				}
				from, to := p.srcRange(s, rank, 0, p.maxBlock)
				return headers[s].payload[from:to]
			})
		}
	})
}
