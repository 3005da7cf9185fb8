package handshake

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/goddp/goddp/internal/jobenv"
)

// connectRanks performs a handshake over TCP, and returns the ends' connections and errors.
func connectRanks(t *testing.T, dialling, listening Party) (conns [2]net.Conn, errs [2]error) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	d, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	l, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []net.Conn{d, l} {
		t.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(time.Minute))
	}
	accepted := make(chan struct{})
	go func() {
		defer close(accepted)
		conns[1], _, errs[1] = Accept(l, listening, testKey, nil)
	}()
	conns[0], _, errs[0] = Dial(d, dialling, testKey)
	<-accepted
	return conns, errs
}

// The data of two ranks are protected if the ranks are on different hosts and have a secret.
func TestProtectedConnections(t *testing.T) {
	for name, c := range map[string]struct {
		change func(d, l *Party)
		want   bool
	}{
		"two hosts":     {func(d, l *Party) { d.Machine, l.Machine = "a", "b" }, true},
		"hosts unknown": {func(d, l *Party) {}, true},
		"one host":      {func(d, l *Party) { d.Machine, l.Machine = "a", "a" }, false},
		"no secret":     {func(d, l *Party) { d.HasSecret, l.HasSecret = false, false }, false},
		"unprotected":   {func(d, l *Party) { d.Unprotected, l.Unprotected = true, true }, false},
		"coordinator":   {func(d, l *Party) { d.Role, l.Role = Rank, Coordinator }, false},
	} {
		t.Run(name, func(t *testing.T) {
			d, l := dialler(1, Job{}, true), listener(Job{}, true)
			c.change(&d, &l)
			conns, errs := connectRanks(t, d, l)
			if err := errors.Join(errs[:]...); err != nil {
				t.Fatal(err)
			}
			sent := bytes.Repeat([]byte("0123456789abcdef"), 3000) // several records
			for i, conn := range conns {
				p, isProtected := conn.(*ProtectedConn)
				if isProtected != c.want {
					t.Errorf("protected: %v, want %v", isProtected, c.want)
				}
				written := make(chan error, 1)
				go func() {
					if isProtected {
						sealed := p.Seal(sent)
						if bytes.Contains(sealed, sent[:16]) {
							written <- errors.New("the data are in the clear")
							return
						}
						if _, err := p.Conn.Write(sealed); err != nil {
							written <- err
							return
						}
					}
					_, err := conn.Write(sent)
					written <- err
				}()
				want := sent
				if isProtected {
					want = append(bytes.Clone(sent), sent...)
				}
				got := make([]byte, len(want))
				if _, err := io.ReadFull(conns[1-i], got); err != nil || !bytes.Equal(got, want) {
					t.Errorf("%v, or other bytes arrive", err)
				}
				if err := <-written; err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// One end is to protect the data and the other one is not.
func TestProtectionOfOneEnd(t *testing.T) {
	for _, atDialler := range []bool{true, false} {
		d, l := dialler(1, Job{}, true), listener(Job{}, true)
		d.Unprotected, l.Unprotected = atDialler, !atDialler
		want := jobenv.UnprotectedVar + " or GODDP_INSECURE is on in process 2 on listen, and off in process 1 on dial"
		if atDialler {
			want = jobenv.UnprotectedVar + " or GODDP_INSECURE is on in process 1 on dial, and off in process 2 on listen"
		}
		_, errs := connectRanks(t, d, l)
		for _, err := range errs {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q", err, want)
			}
		}
	}
}

// Two connections have different keys, so the encrypted bytes of one mean nothing on another.
func TestKeysAreOfOneConnection(t *testing.T) {
	first, errs := connectRanks(t, dialler(1, Job{}, true), listener(Job{}, true))
	second, more := connectRanks(t, dialler(2, Job{}, true), listener(Job{}, true))
	if err := errors.Join(append(errs[:], more[:]...)...); err != nil {
		t.Fatal(err)
	}
	sealed := first[0].(*ProtectedConn).Seal([]byte("a message"))
	if _, err := second[0].(*ProtectedConn).Conn.Write(sealed); err != nil {
		t.Fatal(err)
	}
	if n, err := second[1].Read(make([]byte, 100)); n > 0 || !errors.Is(err, ErrAltered) {
		t.Errorf("%d bytes, %v, want %v", n, err, ErrAltered)
	}
}
