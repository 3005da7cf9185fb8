//go:build unix

package host

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// tryWrite writes as much of data to c as the kernel takes at once, and returns its length. If the
// connection is broken that is 0.
func tryWrite(c net.Conn, data []byte) (n int) {
	if len(data) == 0 {
		return 0
	}
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		return 0
	}
	raw.Write(func(fd uintptr) bool {
		n, _ = unix.Write(int(fd), data)
		return true // do not wait
	})
	return max(n, 0)
}
