package rendezvous

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"testing"
)

func connect(t *testing.T, dialler, listener *tls.Config) (dialling, listening error) {
	t.Helper()
	a, b := net.Pipe()
	done := make(chan error, 1)
	go func() {
		c := tls.Server(b, listener)
		err := c.Handshake()
		if err == nil {
			_, err = c.Write([]byte("x"))
		}
		b.Close()
		done <- err
	}()
	c := tls.Client(a, dialler)
	// The listener's verdict on the dialler arrives with the first read.
	_, err := io.ReadFull(c, make([]byte, 1))
	a.Close()
	return err, <-done
}

func TestEqualIdentitiesConnect(t *testing.T) {
	a, err := NewIdentity([]byte("token"), "job")
	if err != nil {
		t.Fatal(err)
	}
	b, err := NewIdentity([]byte("token"), "job")
	if err != nil {
		t.Fatal(err)
	}
	if d, l := connect(t, a.Config(), b.Config()); d != nil || l != nil {
		t.Errorf("dialler: %v, listener: %v", d, l)
	}
}

func TestOtherIdentitiesAreRefused(t *testing.T) {
	self, err := NewIdentity([]byte("token"), "job")
	if err != nil {
		t.Fatal(err)
	}
	for name, other := range map[string]struct{ token, job string }{
		"other token": {"nekot", "job"}, "no token": {"", "job"}, "other job": {"token", "boj"},
	} {
		t.Run(name, func(t *testing.T) {
			stranger, err := NewIdentity([]byte(other.token), other.job)
			if err != nil {
				t.Fatal(err)
			}
			if d, l := connect(t, stranger.Config(), self.Config()); !errors.Is(d, ErrOtherKey) || l == nil {
				t.Errorf("a stranger dials: %v; the other end: %v", d, l)
			}
			// A stranger that does not mind whom it reaches is refused by the listener.
			careless := stranger.Config()
			careless.VerifyConnection = nil
			if d, l := connect(t, careless, self.Config()); d == nil || !errors.Is(l, ErrOtherKey) {
				t.Errorf("a careless stranger dials: %v; the other end: %v", d, l)
			}
			careless.Certificates = nil
			if d, l := connect(t, careless, self.Config()); d == nil || l == nil {
				t.Errorf("a stranger without a certificate dials: %v; the other end: %v", d, l)
			}
		})
	}
}
