package wire

import (
	"cmp"
	"context"
	"net"
	"syscall"
)

const loopback4, loopback6 = "127.0.0.1", "::1"

// Loopback returns 127.0.0.1, or ::1 on a host whose loopback interface has no IPv4 address.
func Loopback() string {
	if !IsLocal(loopback4) && IsLocal(loopback6) {
		return loopback6
	}
	return loopback4
}

// IsLocal reports whether an IP address is an address of this host. It tries to bind a socket, because the kernel
// binds a socket only to the host's own addresses.
func IsLocal(addr string) bool {
	c, err := net.ListenPacket("udp", net.JoinHostPort(addr, "0"))
	if err != nil {
		return false
	}
	c.Close()
	return true
}

// Listen is net.Listen for TCP, except that without a host in addr it always listens on all IPv4 and
// IPv6 addresses. net.Listen omits IPv6 on a host whose loopback interface has no IPv4.
func Listen(addr string) (net.Listener, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || host != "" || Loopback() == loopback4 {
		return net.Listen("tcp", addr)
	}
	both := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		closed := c.Control(func(fd uintptr) { err = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IPV6, syscall.IPV6_V6ONLY, 0) })
		return cmp.Or(closed, err)
	}}
	return both.Listen(context.Background(), "tcp6", net.JoinHostPort("::", port)) // an address needs no wait for its name
}
