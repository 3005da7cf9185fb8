package coordinator

import (
	"context"
	"errors"
	"net"
	"sync"
)

// errClosed is why a rank hears nothing any more that closed its connection.
var errClosed = errors.New("closed")

// Local connects a rank of this process, without a socket.
func (s *Server) Local(rank int, o ClientOptions) (*Client, error) {
	o.Options = s.opts
	c := newClient(rank, o)
	in := &inbox{wake: make(chan struct{}, 1)}
	p := &peer{rank: rank, local: true, send: func(m *Message, _ func() []byte) bool { in.put(m); return true }, drop: in.close, cut: in.close}
	c.send = func(m *Message) error {
		if err := s.take(p, m); err != nil {
			in.close()
			return err
		}
		return nil
	}
	c.quit, c.unheard, c.others = in.close, func() bool { return s.unheard() || in.busy() }, s.awaitOthers
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
			in.carriedOut()
		}
		s.lost(p, net.ErrClosed)
		c.lost(errClosed)
	})
	c.wg.Go(c.tick)
	return c, nil
}

// unheard tells whether a rank has said something that has not been carried out: this process
// may have been suspended.
func (s *Server) unheard() bool {
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

// awaitOthers waits until no more than one rank is connected, or ctx ends.
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

// inbox holds what a rank of this process is to hear.
type inbox struct {
	mu     sync.Mutex
	queue  []*Message
	taken  bool // one has not been carried out
	closed bool
	wake   chan struct{} // of one
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

// take waits for the next message; nil: the inbox is closed, and empty.
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

func (in *inbox) carriedOut() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.taken = false
}

// busy tells whether a message has not been carried out.
func (in *inbox) busy() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.taken || len(in.queue) > 0
}
