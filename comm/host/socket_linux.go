package host

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// control calls f with a connection's descriptor, or returns why it cannot.
func control(c net.Conn, f func(fd int) error) error {
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = f(int(fd)) }); err != nil {
		return err
	}
	return failed
}

// watch makes the kernel give a control connection up when the peer's host has not
// acknowledged data for as long. It is not for connections of data: to the kernel a
// peer that lives and does not read for as long is lost as well.
func watch(c net.Conn) error {
	if _, ok := c.(*net.TCPConn); !ok {
		return nil
	}
	return control(c, func(fd int) error {
		return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silence/time.Millisecond))
	})
}

// unread is how many bytes have come that nobody has read; 0 at the connection's
// end.
func unread(c net.Conn) (n int, err error) {
	err = control(c, func(fd int) (err error) {
		n, err = unix.IoctlGetInt(fd, unix.TIOCINQ)
		return err
	})
	return n, err
}

// unacknowledged is how many bytes the peer's host may not have.
func unacknowledged(c net.Conn) (n int, err error) {
	if _, ok := c.(*net.TCPConn); !ok {
		return 0, nil // on this host they are there when they are written
	}
	err = control(c, func(fd int) (err error) {
		n, err = unix.IoctlGetInt(fd, unix.TIOCOUTQ)
		return err
	})
	return n, err
}

// awaitInput waits until there is something to read, or the connection's end,
// and takes nothing of it.
func awaitInput(c net.Conn) error {
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		return err
	}
	return raw.Read(func(fd uintptr) bool {
		for {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			if err != unix.EINTR {
				return n != 0
			}
		}
	})
}
