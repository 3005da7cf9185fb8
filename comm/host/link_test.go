package host

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/goddp/goddp/comm/backend"
)

// TestArrived waits for a host to acknowledge what was told: one whose buffers are
// full does not.
func TestArrived(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	own, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	peers, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer peers.Close()
	l := newLink(1)
	l.conns[laneControl] = own
	arrived := func(within time.Duration) bool {
		l.arrived(time.Now().Add(within))
		n, err := unacknowledged(own)
		if err != nil {
			t.Skip("this system does not tell: ", err)
		}
		return n == 0
	}
	if err := l.tell(frameBroke, nil, -1); err != nil || !arrived(time.Minute) {
		t.Errorf("a frame that nobody reads has not arrived at the peer's host: %v", err)
	}
	// The peer's host takes no more; there still is room here.
	for full := false; !full; full = !arrived(10 * time.Millisecond) {
		own.SetWriteDeadline(time.Now().Add(time.Second))
		if _, err := own.Write(make([]byte, 64<<10)); err != nil {
			t.Fatal(err)
		}
	}
	// What tells waits for that too, in vain.
	group := newGroup(backend.Config{Size: 2}, nil)
	const soon = 10 * time.Second
	at := time.Now()
	(&linkNet{group: group, links: []*link{nil, l}}).tell(errors.New("no more"))
	if took := time.Since(at); took < arrivalTimeout || took >= tellTimeout {
		t.Errorf("told after %v, want %v", took, arrivalTimeout)
	}
	l.lost.Store(true)
	at = time.Now()
	if l.arrived(at.Add(time.Minute)); time.Since(at) > soon {
		t.Error("it waits for a peer that was lost")
	}
	l.lost.Store(false)
	go io.Copy(io.Discard, peers) // ends with the connection
	if !arrived(time.Minute) {
		t.Error("what the peer has read has not arrived")
	}
}
