package host

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// A link has a connection for each of these, so that none holds up another.
const (
	laneBulk   = iota // collectives
	laneP2P           // Send and Recv
	laneShared        // frames about shared memory
	lanes

	dataLanes = laneShared // of a link without shared memory
)

// tellTimeout bounds the writing of a frame: a stopped peer must not hold up this rank.
const tellTimeout = time.Second

// link is the connections between this rank and one peer: TCP, or unix
// sockets beside shared memory.
type link struct {
	peer  int
	conns [lanes]net.Conn
	desk  *mapping // the peer's desk; nil: no shared memory

	gone chan struct{} // closed when listen has returned

	mu       sync.Mutex
	segments map[uint64]*mapping // the peer's, announced and not retired
	changed  chan struct{}       // closed, and replaced, when segments grows
}

func newLink(peer int) *link {
	return &link{peer: peer, gone: make(chan struct{}), segments: map[uint64]*mapping{}, changed: make(chan struct{})}
}

// tell writes a frame, with a descriptor when fd is not negative. Called by one goroutine
// at a time.
func (l *link) tell(kind byte, body []byte, fd int) error {
	c := l.conns[laneShared]
	c.SetWriteDeadline(time.Now().Add(tellTimeout))
	if fd < 0 {
		_, err := c.Write(frame(kind, body))
		return err
	}
	return writeFD(c, frame(kind, body), fd)
}

// errNoDescriptor is why this process has no descriptor that a peer sent.
var errNoDescriptor = errors.New("the descriptor did not come through: this process has no more file descriptors, raise its limit (ulimit -n)")

// listen reads frames until the connection ends. Why it does, the coordinator tells.
// fail is called if this rank cannot do as the peer says.
func (l *link) listen(fail func(error)) {
	defer close(l.gone)
	for {
		kind, body, err := readFrame(l.conns[laneShared])
		if err != nil {
			return
		}
		if err := l.handle(kind, body); err != nil {
			fail(err)
			return
		}
	}
}

func (l *link) handle(kind byte, body []byte) error {
	switch {
	case kind == frameSegment && len(body) == 16:
		fd, ok := takeFD(l.conns[laneShared])
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
	default:
		return fmt.Errorf("frame of kind %d and %d bytes", kind, len(body))
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

// interrupt makes blocked reads and writes on a lane return.
func (l *link) interrupt(lane int) { l.conns[lane].SetDeadline(time.Unix(1, 0)) }

func (l *link) close() {
	for _, c := range l.conns {
		if c != nil {
			c.Close()
		}
	}
}
