package store

import (
	"errors"
	"fmt"
	"net"
	"runtime"
	"time"

	"github.com/goddp/goddp/internal/handshake"
)

// This file decides which connections the server serves. The server admits a connection before it
// performs its first request. A connection is admitted after a handshake, or if it comes from a
// process of the same user on this host, as PyTorch's clients do. If Member.Insecure is set, every
// connection is admitted, unless its handshake fails.

const (
	// admissionTimeout is the time limit for the admission of an unknown client, and for every
	// handshake.
	admissionTimeout = 10 * time.Second
	// maxStrangers is the maximum number of connections of class stranger.
	maxStrangers = 256
)

// strangerLimits limit the requests of a connection that is not yet admitted.
var strangerLimits = Limits{
	KeyBytes: len(handshakeKey), ValueBytes: handshake.MaxMessage, RequestKeys: 1, RequestBytes: 3 * handshake.MaxMessage,
}.withDefaults()

// checkExposure returns ErrExposed if other hosts can reach a server at addr, and the
// server could not authenticate them.
func checkExposure(addr net.Addr, m *Member) error {
	if at, ok := addr.(*net.TCPAddr); !ok || at.IP.IsLoopback() || m.Secret != nil || m.Insecure {
		return nil
	}
	return ErrExposed
}

// known returns nil if the server serves nc without a handshake, or else the reason why it
// does not.
func (s *Server) known(nc net.Conn) error {
	if s.opts.Member.Insecure {
		return nil
	}
	return sameUser(nc)
}

// sameUser returns nil if the other end of nc is a process of the same user on this host.
// On systems other than Linux that do not know the user, every process of this host is
// accepted.
func sameUser(nc net.Conn) error {
	err := handshake.SameUser(nc)
	if errors.Is(err, handshake.ErrUserUnknown) && runtime.GOOS != "linux" {
		if at, ok := nc.RemoteAddr().(*net.TCPAddr); ok && at.IP.IsLoopback() {
			return nil
		}
	}
	return err
}

// admit performs the handshake if the client starts one, sets the connection's class, and returns
// its dialect. A client that is rejected in a handshake learns the reason.
func (c *serverConn) admit() (d dialect, err error) {
	unknown := c.s.known(c.nc)
	if unknown != nil {
		if err := c.s.estrange(c.nc); err != nil {
			return d, err
		}
		defer c.hurry()()
	}
	if d, err = c.dialect(); err != nil {
		return d, err
	}
	shakes, err := c.opensWithHandshake(d)
	switch {
	case err != nil:
		return d, err
	case shakes:
		defer c.hurry()()
		return d, c.shakeHands(d, unknown)
	case unknown != nil:
		return d, errNoMember(unknown)
	}
	return d, c.become(unproven)
}

// estrange moves nc to the class stranger. If the class is full, the server closes another
// stranger's connection, so that a flood of strangers does not keep out a member that is
// about to perform its handshake.
func (s *Server) estrange(nc net.Conn) error {
	s.mu.Lock()
	evicted := s.slots.freeSlot(stranger)
	err := s.slots.move(nc, stranger)
	s.mu.Unlock()
	s.reject(evicted, s.slots.full(stranger))
	return err
}

// hurry closes the connection after admissionTimeout, unless done is called before.
func (c *serverConn) hurry() (done func()) {
	timer := time.AfterFunc(admissionTimeout, func() { c.nc.Close() })
	return func() { timer.Stop() }
}

// opensWithHandshake reports whether the first request is part of a handshake. It waits
// for the request without a limit. It peeks only at bytes that every COMPARE_SET has, so it
// does not block on a short request.
func (c *serverConn) opensWithHandshake(d dialect) (bool, error) {
	c.nc.SetReadDeadline(time.Time{})
	first, err := c.dec.r.Peek(1)
	if err != nil || first[0] != opCompareSet.code(d) {
		return false, err
	}
	c.nc.SetReadDeadline(time.Now().Add(c.s.opts.FrameTimeout))
	const head = 1 + 8 // the code, and the length of the key
	b, err := c.dec.r.Peek(head + len(handshakeKey))
	if err != nil {
		return false, c.explain(err)
	}
	return string(b[head:]) == handshakeKey, nil
}

// shakeHands performs the server's side of a handshake. If it succeeds, the client becomes a
// member of the job. The parameter unknown is the reason why the server does not serve this client
// without a handshake, or nil if the server does.
func (c *serverConn) shakeHands(d dialect, unknown error) error {
	limits := c.dec.limits
	c.dec.limits = strangerLimits
	defer func() { c.dec.limits = limits }()
	m := &c.s.opts.Member
	self := m.party(handshake.StoreServer)
	self.Server = c.s.name
	l := handshake.NewListener(self, m.Secret)
	refuse := func(why error) error {
		c.tell(l.Refuse(why)) // an error of tell matters less than why
		return why
	}
	hello, err := c.hear(d)
	if err != nil {
		return err
	}
	if unknown != nil && m.Secret == nil {
		return refuse(errNoMember(unknown))
	}
	answer, err := l.Answer(hello)
	if err != nil {
		return refuse(err)
	}
	if err := c.tell(answer); err != nil {
		return err
	}
	proof, err := c.hear(d)
	if err != nil {
		return err
	}
	if err := l.Verify(proof); err != nil {
		return refuse(err)
	}
	if err := c.become(member); err != nil {
		return refuse(err)
	}
	return c.tell(l.Accept(c.bear(l.Peer())))
}

// hear reads a message of a handshake.
func (c *serverConn) hear(d dialect) ([]byte, error) {
	defer c.release()
	req, err := c.dec.request(d)
	if err != nil {
		return nil, err
	}
	if req.op != opCompareSet || req.keys[0] != handshakeKey {
		return nil, fmt.Errorf("%v within a handshake", req.op)
	}
	return req.values[1], nil
}

// tell writes a message of a handshake.
func (c *serverConn) tell(m []byte) error {
	return c.write(opCompareSet, reply{values: [][]byte{m}})
}

// A bearer is the process that claims a rank. The server knows it while any of its connections is
// open.
type bearer struct {
	process     handshake.Process
	connections int
}

// bear records that the process at the other end has rank p.Rank. If another process
// already has this rank, bear records nothing and returns that process.
func (c *serverConn) bear(p handshake.Party) (rival *handshake.Process) {
	if p.Rank < 0 {
		return nil
	}
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.bearers[p.Rank]
	switch {
	case b == nil:
		b = &bearer{process: p.Process}
		s.bearers[p.Rank] = b
	case b.process.ID != p.Process.ID:
		other := b.process
		return &other
	}
	b.connections++
	c.left = func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if b.connections--; b.connections == 0 {
			delete(s.bearers, p.Rank)
		}
	}
	return nil
}
