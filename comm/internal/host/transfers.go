package host

import (
	"bufio"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/goddp/goddp/internal/handshake"
)

// transfers moves the bytes of collectives between this rank and its peers. Sends do not block, so that
// ranks that send to each other do not deadlock; receives block. Only the collectives' goroutine calls
// send, recv, awaitSent and finish.
type transfers struct {
	group   *Group
	peers   []*peerConn
	readers []*bufio.Reader // by rank; nil for this rank

	readingFrom atomic.Int32 // 1 + the rank from which data is being read; 0 if none
	writingTo   atomic.Int32 // 1 + the rank to which data is being written; 0 if none

	started int // number of sends

	mu      sync.Mutex
	changed sync.Cond  // uses mu; signals that written or err changed
	queue   []outgoing // sends that are not complete, in order; a goroutine runs drain until it is empty
	written int        // number of complete sends
	err     error      // the first error; the group is about to break
}

// outgoing is the rest of a send.
type outgoing struct {
	peer int
	conn net.Conn
	data []byte
}

// maxSealed is the maximum number of bytes that send encrypts itself. drain encrypts larger sends
// concurrently.
const maxSealed = 32 << 10

// readerBytes is the size of a connection's read buffer. A header with a small payload fits.
const readerBytes = 4 << 10

func newTransfers(g *Group, peers []*peerConn) *transfers {
	t := &transfers{group: g, peers: peers, readers: make([]*bufio.Reader, len(peers))}
	t.changed.L = &t.mu
	for r, pc := range peers {
		if pc != nil {
			t.readers[r] = bufio.NewReaderSize(pc.conns[collectiveConn], readerBytes)
		}
	}
	return t
}

// send sends data to peer after all earlier sends. The data must not change until awaitSent or finish
// reports that it was written. A goroutine writes the bytes that the kernel does not accept at once.
func (t *transfers) send(peer int, data []byte) {
	t.started++
	conn := t.peers[peer].conns[collectiveConn]
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.queue) == 0 {
		if p, ok := conn.(*handshake.ProtectedConn); ok && len(data) <= maxSealed {
			conn, data = p.Conn, p.Seal(data)
		}
		data = data[tryWrite(conn, data):]
		if len(data) == 0 {
			t.written++
			return
		}
		go t.drain() // ends when the queue is empty; finish waits for its end
	}
	t.queue = append(t.queue, outgoing{peer, conn, data})
}

// drain writes the queue until it is empty or a write fails.
func (t *transfers) drain() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.queue) > 0 {
		o := t.queue[0]
		t.mu.Unlock()
		t.writingTo.Store(int32(o.peer) + 1)
		_, err := o.conn.Write(o.data)
		t.writingTo.Store(0)
		if err != nil {
			t.fail(t.group.peerLost(t.group.ctx, o.peer, err))
		}
		t.mu.Lock()
		if t.queue[0] = (outgoing{}); err != nil {
			t.queue = nil
		} else {
			t.queue, t.written = t.queue[1:], t.written+1
		}
		t.changed.Broadcast()
	}
}

// awaitSent waits until the first n sends, as counted by started, are complete.
func (t *transfers) awaitSent(n int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.written < n && t.err == nil {
		t.changed.Wait()
	}
	return t.err
}

// recv fills data with the next bytes from peer.
func (t *transfers) recv(peer int, data []byte) error {
	if len(data) == 0 {
		return nil
	}
	t.readingFrom.Store(int32(peer) + 1)
	defer t.readingFrom.Store(0)
	if _, err := io.ReadFull(t.readers[peer], data); err != nil {
		return t.group.peerLost(t.group.ctx, peer, err)
	}
	return nil
}

// finish must be called at the end of each collective, with the collective's error or nil. It
// waits until no send is in progress. It returns the first error of the sends or of the collective.
func (t *transfers) finish(err error) error {
	if err != nil {
		t.fail(err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.queue) > 0 {
		t.changed.Wait()
	}
	return t.err
}

// fail records the first error and makes blocked reads and writes return.
func (t *transfers) fail(err error) {
	t.mu.Lock()
	if t.err == nil {
		t.err = err
	}
	t.mu.Unlock()
	t.interrupt()
}

// interrupt makes blocked reads and writes return.
func (t *transfers) interrupt() {
	for _, pc := range t.peers {
		if pc != nil {
			pc.interrupt(collectiveConn)
		}
	}
}

func (t *transfers) waitingFor() (ranks []int) {
	for _, peer := range []int32{t.readingFrom.Load(), t.writingTo.Load()} {
		if r := int(peer) - 1; r >= 0 && !slices.Contains(ranks, r) {
			ranks = append(ranks, r)
		}
	}
	return ranks
}
