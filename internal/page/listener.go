package page

import (
	"errors"
	"net"
	"sync"

	"github.com/goddp/goddp/internal/handshake"
)

// listener accepts at most MaxConns connections at a time, and on the loopback interface only those of this process's
// user, where the system can tell.
type listener struct {
	net.Listener
	slots chan struct{}
}

func newListener(ln net.Listener) *listener {
	return &listener{ln, make(chan struct{}, MaxConns)}
}

func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		var other *handshake.OtherUserError
		if err := handshake.SameUser(c); errors.As(err, &other) {
			c.Close()
			continue
		}
		select {
		case l.slots <- struct{}{}:
			return &conn{Conn: c, release: sync.OnceFunc(func() { <-l.slots })}, nil
		default:
			c.Close()
		}
	}
}

// conn gives its slot back when it is closed.
type conn struct {
	net.Conn
	release func()
}

func (c *conn) Close() error {
	defer c.release()
	return c.Conn.Close()
}
