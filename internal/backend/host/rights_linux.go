package host

import (
	"net"
	"sync"

	"golang.org/x/sys/unix"
)

// rightsConn is a unix socket that keeps the descriptors which come along.
// Read is called by one goroutine at a time.
type rightsConn struct {
	*net.UnixConn
	mu  sync.Mutex
	fds []int // received and not taken
}

func (c *rightsConn) Read(p []byte) (int, error) {
	oob := make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := c.ReadMsgUnix(p, oob)
	if oobn > 0 {
		msgs, _ := unix.ParseSocketControlMessage(oob[:oobn])
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, m := range msgs {
			fds, _ := unix.ParseUnixRights(&m)
			c.fds = append(c.fds, fds...)
		}
	}
	return n, err
}

// Close closes the descriptors that nobody took, too.
func (c *rightsConn) Close() error {
	err := c.UnixConn.Close()
	for {
		fd, ok := takeFD(c)
		if !ok {
			return err
		}
		unix.Close(fd)
	}
}

// wrapUnix makes c able to carry descriptors.
func wrapUnix(c net.Conn) net.Conn { return &rightsConn{UnixConn: c.(*net.UnixConn)} }

// writeFD writes p with a descriptor.
func writeFD(c net.Conn, p []byte, fd int) error {
	_, _, err := c.(*rightsConn).WriteMsgUnix(p, unix.UnixRights(fd), nil)
	return err
}

// takeFD is the oldest descriptor that was received and not taken.
func takeFD(c net.Conn) (fd int, ok bool) {
	r, ok := c.(*rightsConn)
	if !ok {
		return -1, false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.fds) == 0 {
		return -1, false
	}
	fd, r.fds = r.fds[0], r.fds[1:]
	return fd, true
}
