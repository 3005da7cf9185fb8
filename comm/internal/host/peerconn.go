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

// The connections to a peer. Each kind of traffic has its own, so that none blocks another.
const (
	collectiveConn = iota // collectives
	p2pConn               // Send and Recv
	shmConn               // frames about shared memory
	numConns

	numDataConns = shmConn // the number of connections to a peer without shared memory
)

// frameTimeout is the timeout of writing a frame, so that a stopped peer does not block this rank.
const frameTimeout = time.Second

// peerConn holds the connections to one peer: TCP, or unix sockets next to shared memory.
type peerConn struct {
	peer   int
	conns  [numConns]net.Conn
	region *mapping // the peer's shared region; nil without shared memory

	listenDone chan struct{} // closed when listen has returned

	mu       sync.Mutex
	segments map[uint64]*mapping // the peer's segments that were announced and not retired, by id
	changed  chan struct{}       // closed and replaced when segments grows
}

func newPeerConn(peer int) *peerConn {
	return &peerConn{peer: peer, listenDone: make(chan struct{}), segments: map[uint64]*mapping{}, changed: make(chan struct{})}
}

// sendFrame writes a frame, and a file descriptor unless fd is negative. Only one goroutine may
// call it at a time.
func (pc *peerConn) sendFrame(kind byte, body []byte, fd int) error {
	c := pc.conns[shmConn]
	c.SetWriteDeadline(time.Now().Add(frameTimeout))
	if fd < 0 {
		_, err := c.Write(frame(kind, body))
		return err
	}
	return writeFD(c, frame(kind, body), fd)
}

// errNoDescriptor reports that the kernel dropped a file descriptor that a peer sent.
var errNoDescriptor = errors.New("receiving a file descriptor: this process has reached its limit of open files: raise it (ulimit -n)")

// listen reads frames until the connection ends. It calls fail if a frame is too large or this rank cannot
// handle it. The coordinator reports a lost connection.
func (pc *peerConn) listen(fail func(error)) {
	defer close(pc.listenDone)
	for {
		kind, body, err := readFrame(pc.conns[shmConn])
		if err != nil {
			if tooLarge := frameSizeError(0); errors.As(err, &tooLarge) {
				fail(tooLarge)
			}
			return
		}
		if err := pc.handle(kind, body); err != nil {
			fail(err)
			return
		}
	}
}

func (pc *peerConn) handle(kind byte, body []byte) error {
	switch {
	case kind == frameSegment && len(body) == 16:
		fd, ok := takeFD(pc.conns[shmConn])
		if !ok {
			return errNoDescriptor
		}
		m, err := mapFD(fd, int(binary.LittleEndian.Uint64(body[8:])))
		if err != nil {
			return fmt.Errorf("mapping a segment: %w", err)
		}
		pc.mu.Lock()
		pc.segments[binary.LittleEndian.Uint64(body)] = m
		close(pc.changed)
		pc.changed = make(chan struct{})
		pc.mu.Unlock()
	case kind == frameRetire && len(body) == 8:
		pc.mu.Lock()
		delete(pc.segments, binary.LittleEndian.Uint64(body))
		pc.mu.Unlock()
	default:
		return fmt.Errorf("unexpected frame of kind %d with %d bytes", kind, len(body))
	}
	return nil
}

// segment returns the peer's segment with this id. It waits if the announcement has not arrived
// yet.
func (pc *peerConn) segment(ctx context.Context, id uint64) (*mapping, error) {
	for {
		pc.mu.Lock()
		m, changed := pc.segments[id], pc.changed
		pc.mu.Unlock()
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

// interrupt makes blocked reads and writes on a connection return.
func (pc *peerConn) interrupt(index int) { pc.conns[index].SetDeadline(time.Unix(1, 0)) }

func (pc *peerConn) close() {
	for _, c := range pc.conns {
		if c != nil {
			c.Close()
		}
	}
}
