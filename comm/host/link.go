package host

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goddp/goddp/comm/backend"
)

// A link has three connections, so that none holds up another.
const (
	laneControl = iota // frames; its end is the peer's end
	laneBulk           // collectives
	laneP2P            // Send and Recv
	lanes
)

// tellTimeout bounds the writing of a control frame: a stopped peer must not
// hold up this rank. verdictTimeout bounds how long the control connection
// may take to say why another one failed.
//
// arrivalTimeout bounds how long a peer's host may take to acknowledge that it has
// what was told. A Linux host that has nothing to send does so within 40 ms.
const (
	tellTimeout    = time.Second
	verdictTimeout = 2 * time.Second
	arrivalTimeout = 200 * time.Millisecond
)

// link is the connections between this rank and one peer: TCP, or unix
// sockets beside shared memory.
type link struct {
	peer  int
	conns [lanes]net.Conn
	desk  *mapping // the peer's desk; nil: no shared memory

	telling sync.Mutex // of one frame at a time

	// reading is held while what has come is read and handled: whoever has it
	// shared, and finds nothing unread, knows all that the peer has said.
	reading sync.RWMutex
	broke   atomic.Bool // the peer said that its group broke
	lost    atomic.Bool // the connection ended without a goodbye

	gone chan struct{} // closed when the peer left or was lost
	left bool          // which of the two; set before gone is closed

	waits chan []int // of one: the peer's answer to frameAsk

	mu       sync.Mutex
	segments map[uint64]*mapping // the peer's, announced and not retired
	changed  chan struct{}       // closed, and replaced, when segments grows
}

func newLink(peer int) *link {
	return &link{peer: peer, gone: make(chan struct{}), waits: make(chan []int, 1), segments: map[uint64]*mapping{}, changed: make(chan struct{})}
}

// tell writes a control frame, with a descriptor when fd is not negative.
func (l *link) tell(kind byte, body []byte, fd int) error {
	l.telling.Lock()
	defer l.telling.Unlock()
	c := l.conns[laneControl]
	c.SetWriteDeadline(time.Now().Add(tellTimeout))
	if fd < 0 {
		_, err := c.Write(frame(kind, body))
		return err
	}
	return writeFD(c, frame(kind, body), fd)
}

// errNoDescriptor is why this process has no descriptor that a peer sent.
var errNoDescriptor = errors.New("the descriptor did not come through: this process has no more file descriptors, raise its limit (ulimit -n)")

// listen reads control frames until the peer leaves or the connection ends.
// waits tells whom this process, which is rank, waits for, and fail breaks the group.
func (l *link) listen(rank int, waits func() []int, fail func(error)) {
	defer close(l.gone)
	c := l.conns[laneControl]
	if err := watch(c); err != nil {
		fail(&backend.PeerLostError{Peer: l.peer, Err: err})
	}
	for {
		awaitInput(c) // of an error readFrame tells
		l.reading.Lock()
		kind, body, err := readFrame(c)
		if err == nil {
			err = l.handle(kind, body, waits, fail)
		}
		l.reading.Unlock()
		switch {
		case l.left || errors.Is(err, net.ErrClosed): // by the peer, or by this rank
			return
		case errors.Is(err, io.EOF):
			l.lost.Store(true)
			fail(&backend.PeerLostError{Peer: l.peer})
			return
		case errors.Is(err, errNoDescriptor): // the peer lives
			fail(fmt.Errorf("rank %d cannot take memory that rank %d shares with it: %w", rank, l.peer, err))
			return
		case err != nil:
			l.lost.Store(true)
			fail(&backend.PeerLostError{Peer: l.peer, Err: err})
			return
		}
	}
}

func (l *link) handle(kind byte, body []byte, waits func() []int, fail func(error)) error {
	switch {
	case kind == frameBye:
		l.left = true
	case kind == frameBroke:
		n, err := decodeNotice(body)
		if err != nil {
			return err
		}
		l.broke.Store(true)
		fail(n.err())
	case kind == frameSegment && len(body) == 16:
		fd, ok := takeFD(l.conns[laneControl])
		if !ok {
			return errNoDescriptor
		}
		m, err := mapFD(fd, int(binary.LittleEndian.Uint64(body[8:])))
		if err != nil {
			return fmt.Errorf("mapping a segment: %w", err)
		}
		l.mu.Lock()
		l.segments[binary.LittleEndian.Uint64(body)] = m
		close(l.changed)
		l.changed = make(chan struct{})
		l.mu.Unlock()
	case kind == frameRetire && len(body) == 8:
		l.mu.Lock()
		delete(l.segments, binary.LittleEndian.Uint64(body))
		l.mu.Unlock()
	case kind == frameAsk && len(body) == 0:
		l.tell(frameWaits, encodeRanks(waits()), -1) // if that fails, the next read does
	case kind == frameWaits:
		ranks, err := decodeRanks(body)
		if err != nil {
			return err
		}
		select {
		case l.waits <- ranks:
		default: // nobody asked
		}
	default:
		return fmt.Errorf("control frame of kind %d and %d bytes", kind, len(body))
	}
	return nil
}

// segment is the peer's segment of that number: its announcement may still be
// on its way.
func (l *link) segment(ctx context.Context, id uint64) (*mapping, error) {
	for {
		l.mu.Lock()
		m, changed := l.segments[id], l.changed
		l.mu.Unlock()
		if m != nil {
			return m, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// verdict is why a connection to the peer failed with err: what the control
// connection says, if it says anything soon.
func (l *link) verdict(ctx context.Context, err error) error {
	timer := time.NewTimer(verdictTimeout)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-l.gone:
		if l.left {
			return left(l.peer)
		}
		return &backend.PeerLostError{Peer: l.peer}
	case <-timer.C:
		return &backend.PeerLostError{Peer: l.peer, Err: err}
	}
}

// arrived waits, until the deadline, for the peer's host to have what was told, unless
// the peer was lost.
func (l *link) arrived(deadline time.Time) {
	for time.Now().Before(deadline) && !l.lost.Load() {
		if n, err := unacknowledged(l.conns[laneControl]); n == 0 || err != nil {
			return
		}
		time.Sleep(100 * time.Microsecond)
	}
}

// quiet tells whether the peer has not said that its group broke: on its desk, which
// costs nothing to look at, or in a frame. What has come and was not handled yet may say
// so.
func (l *link) quiet() bool {
	switch {
	case l.desk != nil:
		return !saysBroke(l.desk)
	case closed(l.gone):
		return !l.broke.Load()
	}
	if !l.reading.TryRLock() {
		return false
	}
	defer l.reading.RUnlock()
	n, err := unread(l.conns[laneControl])
	return n == 0 && err == nil && !l.broke.Load()
}

// departed tells whether the peer closed its group in good order.
func (l *link) departed() bool {
	select {
	case <-l.gone:
		return l.left
	default:
		return false
	}
}

// interrupt makes blocked reads and writes of data return.
func (l *link) interrupt() {
	past := time.Unix(1, 0)
	l.conns[laneBulk].SetDeadline(past)
	l.conns[laneP2P].SetDeadline(past)
}

func (l *link) close() {
	for _, c := range l.conns {
		if c != nil {
			c.Close()
		}
	}
}
