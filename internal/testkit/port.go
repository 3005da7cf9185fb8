package testkit

import (
	"net"
	"os"
	"strconv"
	"syscall"
	"testing"
)

// Port returns a free TCP port of 127.0.0.1, and its address. It reserves the port until the
// test ends, by a socket that is bound to it and does not listen. So the kernel gives the port
// to no other process that asks for a free one. A listener that reuses addresses, as Go's and
// PyTorch's do, can listen on it.
func Port(t testing.TB) (port int, addr string) {
	t.Helper()
	syscall.ForkLock.RLock()
	s, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(s)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(os.NewSyscallError("socket", err))
	}
	t.Cleanup(func() { syscall.Close(s) })
	if err := syscall.SetsockoptInt(s, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		t.Fatal(os.NewSyscallError("setsockopt", err))
	}
	if err := syscall.Bind(s, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(os.NewSyscallError("bind", err))
	}
	at, err := syscall.Getsockname(s)
	if err != nil {
		t.Fatal(os.NewSyscallError("getsockname", err))
	}
	port = at.(*syscall.SockaddrInet4).Port
	return port, net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}
