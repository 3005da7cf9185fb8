package handshake

import (
	"errors"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// overflowUID returns a uid that no process has: macOS has no user namespaces.
func overflowUID() uint32 { return ^uint32(0) }

func mapsAllUsers() bool { return true }

func unixPeer(c *net.UnixConn) (uid uint32, err error) {
	err = control(c, func(fd int) error {
		cred, err := unix.GetsockoptXucred(fd, unix.SOL_LOCAL, unix.LOCAL_PEERCRED)
		if err != nil {
			return os.NewSyscallError("getsockopt LOCAL_PEERCRED", err)
		}
		uid = cred.Uid
		return nil
	})
	return uid, err
}

func tcpPeer(*net.TCPConn) (uint32, error) {
	return 0, errors.New("macOS does not report the user of a TCP connection")
}
