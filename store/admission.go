package store

import (
	"errors"
	"fmt"
	"net"
	"runtime"
	"time"

	"github.com/goddp/goddp/internal/handshake"
	"github.com/goddp/goddp/internal/peeruid"
)

// Who is served. A connection is admitted before its first request counts: by a
// handshake, or, without one, because it comes from a process of the same user on this
// host, as PyTorch's clients do. Under Insecure anybody is admitted, unless a handshake
// fails.

const (
	// admissionTimeout bounds how long a stranger may take to introduce itself, and
	// anybody to complete a handshake.
	admissionTimeout = 10 * time.Second
	// maxStrangers bounds the connections of strangers that are not admitted yet.
	maxStrangers = 256
)

// strangerLimits bound what is read of a connection before it is admitted.
var strangerLimits = Limits{
	KeyBytes: len(handshakeKey), ValueBytes: handshake.MaxMessage, RequestKeys: 1, RequestBytes: 3 * handshake.MaxMessage,
}.withDefaults()

// checkExposure returns ErrExposed if a server at addr would have to serve other hosts
// without knowing whom.
func checkExposure(addr net.Addr, m *Member) error {
	if at, ok := addr.(*net.TCPAddr); !ok || at.IP.IsLoopback() || m.Secret != nil || m.Insecure {
		return nil
	}
	return ErrExposed
}

// known returns nil if the server serves nc without a handshake, else why not.
func (s *Server) known(nc net.Conn) error {
	if s.opts.Member.Insecure {
		return nil
	}
	return sameUser(nc)
}

// sameUser returns nil if the other end of nc is a process of the same user on this
// host. Where the system cannot tell, every process of this host counts as one.
func sameUser(nc net.Conn) error {
	err := peeruid.SameUser(nc)
	if errors.Is(err, peeruid.ErrUnknown) && runtime.GOOS != "linux" {
		if at, ok := nc.RemoteAddr().(*net.TCPAddr); ok && at.IP.IsLoopback() {
			return nil
		}
	}
	return err
}

// admit gives the connection its class and returns its dialect, having performed the
// handshake if it opens with one. A client of ours that is refused has been told why.
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

// estrange gives nc a slot of the strangers. If there is none, another stranger makes
// room, so that a flood of them does not keep a member out that is about to prove it.
func (s *Server) estrange(nc net.Conn) error {
	s.mu.Lock()
	evicted := s.slots.freeSlot(stranger)
	err := s.slots.move(nc, stranger)
	s.mu.Unlock()
	s.reject(evicted, s.slots.full(stranger))
	return err
}

// hurry closes the connection if what follows takes too long, until done is called.
func (c *serverConn) hurry() (done func()) {
	timer := time.AfterFunc(admissionTimeout, func() { c.nc.Close() })
	return func() { timer.Stop() }
}

// opensWithHandshake looks at the first request, which may come as late as it likes. It
// waits for no more than every request of that kind has.
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

// shakeHands performs the listener's side of a handshake, after which the client is a
// member. unknown is why the client
// would not be served without one, or nil.
func (c *serverConn) shakeHands(d dialect, unknown error) error {
	limits := c.dec.limits
	c.dec.limits = strangerLimits
	defer func() { c.dec.limits = limits }()
	m := &c.s.opts.Member
	self := m.party(handshake.StoreServer)
	self.Server = c.s.name
	l := handshake.NewListener(self, m.Secret)
	refuse := func(why error) error {
		c.tell(l.Refuse(why)) // why is the error
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

// A bearer is the process that bears a rank, while any of its connections is open.
type bearer struct {
	process     handshake.Process
	connections int
}

// bear notes that the connection is of a rank, or returns another process that bears
// the rank already.
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
