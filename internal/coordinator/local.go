package coordinator

import (
	"context"
	"errors"
	"net"
	"sync"
)

// errClosed is the error of a connection that this rank has closed.
var errClosed = errors.New("closed")

// Local connects a rank that runs in this process. It uses no socket.
func (s *Server) Local(rank int, o ClientOptions) (*Client, error) {
	o.Options = s.opts
	c := newClient(rank, o)
	in := &inbox{wake: make(chan struct{}, 1)}
	p := &peer{rank: rank, send: func(m *Message, _ func() []byte) bool { in.put(m); return true }, drop: in.close, cut: in.close}
	c.send = func(m *Message) error {
		if err := s.handle(p, m); err != nil {
			in.close()
			return err
		}
		return nil
	}
	c.quit, c.hasPending, c.awaitOthers = in.close, func() bool { return s.hasPending() || in.busy() }, s.awaitOthers
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, net.ErrClosed
	}
	s.wg.Add(1)
	c.wg.Go(func() {
		defer s.wg.Done()
		defer close(c.done)
		for m := in.take(); m != nil; m = in.take() {
			c.receive(m)
			in.handled()
		}
		s.peerLost(p, net.ErrClosed)
		c.coordinatorLost(errClosed)
	})
	c.wg.Go(c.tick)
	return c, nil
}

// hasPending reports whether a message of a rank has arrived over TCP and has not been handled. Such a
// message may report a failure, even an old one if this process was suspended. So while hasPending
// returns true, a rank of this process must not report a call as successful.
func (s *Server) hasPending() bool {
	if s.ln == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.peers {
		if p.conn == nil {
			continue
		}
		if some, err := unread(p.conn.(*net.TCPConn)); some || err != nil {
			return true
		}
	}
	return s.taken.Load() > 0
}

// awaitOthers waits until at most one rank is connected, or until ctx ends.
func (s *Server) awaitOthers(ctx context.Context) {
	for {
		s.mu.Lock()
		n := len(s.peers)
		s.mu.Unlock()
		if n <= 1 {
			return
		}
		select {
		case <-s.ended:
		case <-ctx.Done():
			return
		}
	}
}

// inbox is the queue of messages for a rank of this process.
type inbox struct {
	mu     sync.Mutex
	queue  []*Message
	taken  bool // take has returned a message that has not been handled
	closed bool
	wake   chan struct{} // capacity 1; a value wakes the goroutine in take
}

func (in *inbox) put(m *Message) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.queue = append(in.queue, m)
	in.signal()
}

func (in *inbox) close() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.closed = true
	in.signal()
}

func (in *inbox) signal() {
	select {
	case in.wake <- struct{}{}:
	default:
	}
}

// take waits for the next message and returns it. It returns nil if the inbox is closed and empty.
func (in *inbox) take() *Message {
	for {
		in.mu.Lock()
		var m *Message
		if len(in.queue) > 0 {
			m, in.queue, in.taken = in.queue[0], in.queue[1:], true
		}
		closed := in.closed
		in.mu.Unlock()
		if m != nil || closed {
			return m
		}
		<-in.wake
	}
}

// handled is called when the rank has handled the message that take returned.
func (in *inbox) handled() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.taken = false
}

// busy reports whether a message is unhandled: in the queue, or returned by take and not yet handled.
func (in *inbox) busy() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.taken || len(in.queue) > 0
}
