package testkit

import (
	"errors"
	"net"
	"syscall"
	"testing"
)

func TestPort(t *testing.T) {
	port, addr := Port(t)
	if c, err := net.Dial("tcp", addr); err == nil {
		c.Close()
		t.Errorf("somebody listens at %s", addr)
	}
	for range 2 { // one listener after the other, as when ranks Init again
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		l.Close()
	}
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	taker := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}}
	if c, err := taker.Dial("tcp", other.Addr().String()); !errors.Is(err, syscall.EADDRINUSE) {
		if err == nil {
			c.Close()
		}
		t.Errorf("another took port %d: %v, want that it is in use", port, err)
	}
}
