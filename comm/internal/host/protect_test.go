package host_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goddp/goddp/comm/failure"
	"github.com/goddp/goddp/comm/internal/host"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/handshake"
	"github.com/goddp/goddp/internal/store"
	"github.com/goddp/goddp/internal/testkit/backendtest"
	"github.com/goddp/goddp/internal/testkit/handshaketest"
)

// attacker forwards the bytes of connections. It passes what the dialler has sent on all of them,
// from a position in each on, through alter.
type attacker struct {
	from  int
	alter func(b []byte) []byte

	wg    sync.WaitGroup
	mu    sync.Mutex
	seen  [][]byte // what each dialler sent
	conns []net.Conn
	hit   bool
}

func newAttacker(t *testing.T, from int, alter func(b []byte) []byte) *attacker {
	a := &attacker{from: from, alter: alter}
	t.Cleanup(func() {
		a.mu.Lock()
		for _, c := range a.conns {
			c.Close()
		}
		a.mu.Unlock()
		a.wg.Wait()
	})
	return a
}

// dial connects with addr through the attacker.
func (a *attacker) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer ln.Close()
	var d net.Dialer
	out, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	c, err := d.DialContext(ctx, "tcp", ln.Addr().String())
	if err != nil {
		out.Close()
		return nil, err
	}
	in, err := ln.Accept()
	if err != nil {
		out.Close()
		c.Close()
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.conns = append(a.conns, in, out)
	a.seen = append(a.seen, nil)
	index := len(a.seen) - 1
	a.wg.Go(func() { a.forward(out, in, index) })
	a.wg.Go(func() { a.forward(in, out, -1) })
	return c, nil
}

// forward forwards one direction of a connection. index is that of what the dialler sent; -1 in the
// other direction.
func (a *attacker) forward(to, from net.Conn, index int) {
	defer to.Close()
	buf := make([]byte, 1<<14)
	for {
		n, err := from.Read(buf)
		b := buf[:n]
		if index >= 0 {
			a.mu.Lock()
			before := len(a.seen[index])
			a.seen[index] = append(a.seen[index], b...)
			if a.alter != nil && !a.hit && before+n > a.from {
				a.hit = true
				at := max(a.from-before, 0)
				b = slices.Concat(b[:at], a.alter(slices.Clone(b[at:])))
			}
			a.mu.Unlock()
		}
		if _, werr := to.Write(b); err != nil || werr != nil {
			return
		}
	}
}

// attacks are what an attacker does to bytes in the middle of a connection.
var attacks = map[string]func(b []byte) []byte{
	"flips a bit": func(b []byte) []byte { b[0] ^= 4; return b },
	"replays":     func(b []byte) []byte { return slices.Concat(b, b) },
	"injects":     func(b []byte) []byte { return slices.Concat([]byte{0, 0, 0, 32}, make([]byte, 48), b) },
	"leaves out":  func(b []byte) []byte { return b[1:] },
}

// underAttack makes a group of two ranks on different hosts. An attacker is between them.
func underAttack(t *testing.T, a *attacker, o host.Options) []*backendtest.Rank {
	t.Helper()
	return world(t, 2, func(r int) *host.Options {
		o := o
		o.HostID = fmt.Sprint(r)
		o.SetDial(a.dial)
		return &o
	}, nil)
}

var withSecret = host.Options{Member: store.Member{Secret: theSecret}}

// Somebody changes bytes that rank 1 sends to rank 0. Both ranks fail at once, and the errors name the
// other rank and say what happened. The bytes are in the middle of the half that rank 0 reduces: without the rest of it,
// rank 0 cannot send what rank 1 needs to end.
func TestAlteredBytesAreNoticed(t *testing.T) {
	for name, alter := range attacks {
		t.Run(name, func(t *testing.T) {
			ranks := underAttack(t, newAttacker(t, 1<<18, alter), withSecret)
			for r, err := range outcomes(t, ranks, func(int) *backend.Call { return reduceCall(1 << 18) }) {
				checkAltered(t, r, err)
			}
		})
	}
}

// checkAltered checks the error of a rank that noticed an attack.
func checkAltered(t *testing.T, rank int, err error) {
	t.Helper()
	var lost *failure.PeerLostError
	if !errors.As(err, &lost) || !strings.Contains(err.Error(), handshake.ErrAltered.Error()) || strings.Contains(err.Error(), "\n") {
		t.Errorf("rank %d: %v, want one line that names a rank and says %q", rank, err, handshake.ErrAltered)
	}
}

// In a call of few bytes only the rank that gets the wrong ones notices. The other rank learns it from
// its next call. Start itself need not return the error: the other rank may know of the failure already,
// and still be about to break its group.
func TestAlteredSmallCallIsNoticed(t *testing.T) {
	for _, name := range []string{"flips a bit", "replays", "injects"} {
		t.Run(name, func(t *testing.T) {
			ranks := underAttack(t, newAttacker(t, 8<<10, attacks[name]), withSecret)
			call := func(seq uint64) *backend.Call { c := reduceCall(100); c.Seq = seq; return c }
			for seq := uint64(1); seq < 100; seq++ {
				errs := outcomes(t, ranks, func(int) *backend.Call { return call(seq) })
				if errs[0] != nil {
					checkAltered(t, 0, errs[0])
					next := outcomes(t, ranks, func(r int) *backend.Call {
						if r == 0 {
							return nil
						}
						return call(seq + 1)
					})
					checkAltered(t, 1, next[1])
					return
				}
			}
			t.Error("rank 0 notices nothing")
		})
	}
}

// An attacker who lets nothing pass any more does not keep a call beyond its deadline.
func TestWithheldBytesEndWithTheDeadline(t *testing.T) {
	silence := make(chan struct{})
	a := newAttacker(t, 1<<19, func([]byte) []byte { <-silence; return nil })
	ranks := underAttack(t, a, withSecret)
	errs := outcomes(t, ranks, func(int) *backend.Call {
		c := reduceCall(1 << 20)
		c.Timeout = 300 * time.Millisecond
		return c
	})
	close(silence)
	for r, err := range errs {
		if !errors.Is(err, failure.ErrTimeout) {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

// Who listens on the way sees the handshake, and then nothing but encrypted records, unless the ranks have no secret or
// are told not to protect their data.
func TestNothingIsSentInTheClear(t *testing.T) {
	pattern := []byte("gradients that nobody else may see, and their headers")
	for name, o := range map[string]host.Options{"secret": withSecret, "no secret": {}, "unprotected": {Unprotected: true, Member: withSecret.Member}} {
		t.Run(name, func(t *testing.T) {
			a := newAttacker(t, 0, nil)
			ranks := underAttack(t, a, o)
			for _, n := range []int{100, 1000, 100_000} { // inline, by halving, by a ring
				err := errors.Join(outcomes(t, ranks, func(r int) *backend.Call {
					src := bytes.Repeat(pattern, n)
					return &backend.Call{Seq: uint64(n), Kind: backend.AllReduce, Op: backend.Max, Timeout: soon,
						Src: device.NewTensor(device.HostBuffer(src, nil), device.Uint8, len(src)), Dst: device.NewTensor(device.HostBuffer(src, nil), device.Uint8, len(src))}
				})...)
				if err != nil {
					t.Fatal(err)
				}
			}
			a.mu.Lock()
			defer a.mu.Unlock()
			wantClear := name != "secret"
			isClear := slices.ContainsFunc(a.seen, func(b []byte) bool { return bytes.Contains(b, pattern) })
			if isClear != wantClear {
				t.Errorf("the data are visible: %v", isClear)
			}
			for i, b := range a.seen {
				if err := handshaketest.CheckProtected(b); (err == nil) == wantClear {
					t.Errorf("connection %d: %v", i, err)
				}
			}
		})
	}
}
