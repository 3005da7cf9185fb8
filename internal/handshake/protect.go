package handshake

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
)

// isProtected reports whether the two ends go on in TLS. Both ends decide the same, because all
// that they decide by is in the two messages that the proofs cover.
func (e *end) isProtected() bool {
	betweenRanks := e.self.Role == PeerDialler || e.self.Role == PeerListener
	oneHost := e.self.Machine != "" && e.self.Machine == e.peer.Machine
	return betweenRanks && !oneHost && e.self.HasSecret && !e.self.Unprotected
}

// protect returns the connection by which the two ends of c go on after the handshake. begin is
// [tls.Client] or [tls.Server].
func (e *end) protect(c net.Conn, begin func(net.Conn, *tls.Config) *tls.Conn) (net.Conn, error) {
	if !e.isProtected() {
		return c, nil
	}
	// The identity is that of this connection alone, so the two ends of the TLS connection are the
	// two processes that gave the proofs.
	id, err := NewIdentity(proof(e.key, forTLS, e.hello, e.answer), "", "goddp: a connection between ranks")
	if err != nil {
		return nil, err
	}
	under := &cipherConn{Conn: c, in: bufio.NewReaderSize(c, cipherBuffer)}
	p := &ProtectedConn{Conn: begin(under, id.Config()), under: under}
	return p, describeTLS(p.Handshake())
}

// ProtectedConn is a connection that TLS encrypts and authenticates.
type ProtectedConn struct {
	*tls.Conn
	under *cipherConn
}

// Seal encrypts data, of which it writes nothing. The caller writes the result to c before it
// calls Seal or writes to p again. The result is valid until then.
func (p *ProtectedConn) Seal(data []byte) (c net.Conn, sealed []byte, err error) {
	p.under.hold()
	_, err = p.Conn.Write(data)
	return p.under.Conn, p.under.release(), describeTLS(err)
}

func (p *ProtectedConn) Read(b []byte) (int, error) {
	n, err := p.Conn.Read(b)
	return n, describeTLS(err)
}

func (p *ProtectedConn) Write(b []byte) (int, error) {
	n, err := p.Conn.Write(b)
	return n, describeTLS(err)
}

// Close closes the connection without a message of TLS about it, which could block behind data
// that the other end does not read. The other end knows how many bytes it has to get.
func (p *ProtectedConn) Close() error { return p.under.Close() }

// cipherBuffer is the size of the buffer of encrypted bytes that were read. It holds several of
// TLS's records, of 16 KiB each, which makes a stream of large messages faster by half.
const cipherBuffer = 64 << 10

// cipherConn carries the encrypted bytes of a ProtectedConn. It reads through a buffer.
type cipherConn struct {
	net.Conn
	in *bufio.Reader

	mu     sync.Mutex // the reader writes too: alerts
	isHeld bool       // between hold and release, bytes are kept in held instead of written
	held   []byte
}

func (c *cipherConn) Read(b []byte) (int, error) { return c.in.Read(b) }

func (c *cipherConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	if c.isHeld {
		defer c.mu.Unlock()
		c.held = append(c.held, b...)
		return len(b), nil
	}
	c.mu.Unlock()
	return c.Conn.Write(b)
}

// hold begins to keep the bytes that are written.
func (c *cipherConn) hold() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.isHeld, c.held = true, c.held[:0]
}

// release returns the bytes that were kept since hold.
func (c *cipherConn) release() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.isHeld = false
	return c.held
}

// ErrAltered is in the error of a connection whose bytes are not those that the other end wrote.
var ErrAltered = errors.New("the connection's bytes were changed on the way")

// describeTLS adds ErrAltered to an error of TLS's.
func describeTLS(err error) error {
	var op *net.OpError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrOtherKey), errors.As(err, new(tls.RecordHeaderError)):
	case errors.As(err, &op) && (op.Op == "local error" || op.Op == "remote error"): // what crypto/tls calls its alerts
	default:
		return err
	}
	return fmt.Errorf("%w: %w", ErrAltered, err)
}
