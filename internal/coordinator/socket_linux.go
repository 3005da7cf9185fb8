package coordinator

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// setUserTimeout makes the kernel end a connection if the host at the other end has not acknowledged
// data for the time `after`.
func setUserTimeout(c *net.TCPConn, after time.Duration) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(after/time.Millisecond))
	}); err != nil {
		return err
	}
	return failed
}

// unread reports whether a connection has unread input or has ended.
func unread(c *net.TCPConn) (some bool, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return false, err
	}
	err = raw.Control(func(fd uintptr) { some = readable(fd) })
	return some, err
}

func readable(fd uintptr) bool {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		if err != unix.EINTR {
			return n != 0
		}
	}
}

// awaitInput waits until a connection has unread input or has ended. It reads nothing.
func awaitInput(c *net.TCPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Read(readable)
}
