package host

import (
	"fmt"
	"net"
	"sync"

	"golang.org/x/sys/unix"
)

// maxFDs is the maximum number of received descriptors that a connection holds for takeFD. A peer sends one
// descriptor per frame, but an attacker could send one with every byte.
const maxFDs = 16

// fdConn is a unix socket that keeps received file descriptors until takeFD. Only one goroutine at a time
// may call Read. Read returns an error if it holds more than maxFDs.
type fdConn struct {
	*net.UnixConn
	mu  sync.Mutex
	fds []int // received and not taken
}

func (c *fdConn) Read(p []byte) (int, error) {
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
		if err == nil && len(c.fds) > maxFDs {
			err = fmt.Errorf("%[2]d unclaimed file descriptors, want at most %[1]d", maxFDs, len(c.fds))
		}
	}
	return max(n, 0), err // ReadMsgUnix returns -1 with an error
}

// Close also closes the descriptors that were not taken.
func (c *fdConn) Close() error {
	err := c.UnixConn.Close()
	for {
		fd, ok := takeFD(c)
		if !ok {
			return err
		}
		unix.Close(fd)
	}
}

// wrapUnix returns a connection over c that can carry file descriptors.
func wrapUnix(c net.Conn) net.Conn { return &fdConn{UnixConn: c.(*net.UnixConn)} }

// writeFD writes p together with a file descriptor.
func writeFD(c net.Conn, p []byte, fd int) error {
	_, _, err := c.(*fdConn).WriteMsgUnix(p, unix.UnixRights(fd), nil)
	return err
}

// takeFD returns the oldest descriptor that was received and not taken.
func takeFD(c net.Conn) (fd int, ok bool) {
	r, ok := c.(*fdConn)
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
