//go:build unix

package host

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// tryWrite writes as much of data to c as possible without blocking, and returns the number of bytes:
// 0 if the connection is broken or encrypted.
func tryWrite(c net.Conn, data []byte) (n int) {
	plain, ok := c.(syscall.Conn)
	if !ok || len(data) == 0 {
		return 0
	}
	raw, err := plain.SyscallConn()
	if err != nil {
		return 0
	}
	raw.Write(func(fd uintptr) bool {
		n, _ = unix.Write(int(fd), data)
		return true // do not wait
	})
	return max(n, 0)
}
