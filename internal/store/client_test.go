package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goddp/goddp/internal/testkit"
)

// The server may start after its clients.
func TestDialBeforeServer(t *testing.T) {
	_, addr := testkit.Port(t)
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	dialled := make(chan error)
	go func() {
		c, err := Dial(withPatience(t), addr, nil)
		if err == nil {
			err = c.Set(withPatience(t), "k", nil)
			c.Close()
		}
		dialled <- err
	}()
	// The first server that answers is no store. Dial retries then too.
	nc, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
	nc.Close()
	s, err := Listen(addr, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := <-dialled; err != nil {
		t.Error(err)
	}
}

// A client of one server does not use a later server at the same address.
func TestNextServer(t *testing.T) {
	_, addr := testkit.Port(t)
	serve := func() *Server {
		s, err := Listen(addr, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	s := serve()
	c, other := dial(t, addr, &ClientOptions{Member: &Member{}}), dial(t, addr, nil)
	waits := make(chan error)
	go func() { waits <- c.Wait(withPatience(t), "never") }()
	if _, err := c.Add(withPatience(t), "n", 1); err != nil { // perhaps on a second connection
		t.Fatal(err)
	}
	s.Close()
	if err := <-waits; !errors.Is(err, ErrServerLost) {
		t.Errorf("a wait that the server's end cut short: %v", err)
	}
	serve()
	for range 3 {
		if _, err := c.Add(withPatience(t), "n", 1); !errors.Is(err, ErrServerLost) {
			t.Errorf("told the next server: %v", err)
		}
	}
	if _, err := c.Add(withPatience(t), "n", 1); !strings.Contains(fmt.Sprint(err), "a different store now listens at this address") {
		t.Errorf("told the next server: %v", err)
	}
	other.Add(withPatience(t), "n", 1) // fails on the first one's connection
	if n, err := other.Add(withPatience(t), "n", 1); err != nil || n > 2 {
		t.Errorf("without an introduction: %d, %v", n, err)
	}
}

func TestDialTimesOut(t *testing.T) {
	t.Parallel()
	_, addr := testkit.Port(t)
	_, port, _ := net.SplitHostPort(addr)
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mute.Close() })
	late := errors.New("too late")
	for addr, want := range map[string]string{
		addr:                 "store " + addr + ": dial: connection refused (after ",
		"localhost:" + port:  "store localhost:" + port + ": dial: ADDRESS:" + port + ": connection refused (after ",
		mute.Addr().String(): "store " + mute.Addr().String() + ": dial: a program listens at this address, but it does not answer as a store (after ",
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeoutCause(t.Context(), 500*time.Millisecond, late)
			defer cancel()
			_, err := Dial(ctx, addr, nil)
			for _, is := range []error{ErrServerLost, context.DeadlineExceeded, late} {
				if !errors.Is(err, is) {
					t.Errorf("error %v is not %v", err, is)
				}
			}
			got := strings.NewReplacer("dial: 127.0.0.1:", "dial: ADDRESS:", "dial: [::1]:", "dial: ADDRESS:").Replace(err.Error()) // localhost is either
			if refused := strings.Contains(want, "refused"); !strings.HasPrefix(got, want) || errors.Is(err, syscall.ECONNREFUSED) != refused {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
	ended, end := context.WithCancelCause(t.Context())
	end(errors.New("enough"))
	_, err = Dial(ended, addr, nil)
	if want := "store " + addr + ": dial: enough: no attempt made (after "; !errors.Is(err, context.Canceled) || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("got %q, want %q", err, want)
	}
}

// While Dial waits for a server, it says why, once.
func TestDialSaysWhyItWaits(t *testing.T) {
	t.Parallel()
	_, silent := testkit.Port(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	var dials sync.WaitGroup
	for addr, want := range map[string]string{
		silent:             "connection refused",
		ln.Addr().String(): "a program listens at this address, but it does not answer as a store",
	} {
		ctx, cancel := context.WithCancel(t.Context())
		var got []string
		dials.Go(func() {
			_, err := Dial(ctx, addr, &ClientOptions{waitingAfter: 500 * time.Millisecond, Waiting: func(why error) {
				got = append(got, why.Error())
				cancel()
			}})
			if err == nil || len(got) != 1 || got[0] != want {
				t.Errorf("%s: %v; it waited because of %q, want %q", addr, err, got, want)
			}
		})
	}
	dials.Wait()
	dial(t, listen(t, nil).Addr(), &ClientOptions{Waiting: func(why error) { t.Errorf("a server that answers: %v", why) }})
}

func TestAnnounce(t *testing.T) {
	s := listen(t, nil)
	for range 2 {
		dial(t, s.Addr(), &ClientOptions{Announce: true})
	}
	dial(t, s.Addr(), nil)
	if v, _ := s.table.get("init/"); string(v[0]) != "2" {
		t.Errorf("init/ is %q, want 2", v[0])
	}
}

// A process that makes one call at a time has one connection, even after waits that were
// cancelled. A process with n waits at the same time has n connections, and keeps a few
// of them.
func TestConnections(t *testing.T) {
	s := listen(t, nil)
	c := dial(t, s.Addr(), nil)
	open := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.slots.where)
	}
	for range 5 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		if err := c.Wait(ctx, "k"); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		cancel()
	}
	if n := open(); n != 1 {
		t.Errorf("%d connections for a call at a time", n)
	}
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			if err := c.Wait(withPatience(t), "k"); err != nil {
				t.Error(err)
			}
		})
	}
	waitFor(t, func() bool { return open() == 10 })
	if err := s.Local().Set(t.Context(), "k", nil); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	waitFor(t, func() bool { return open() == maxIdle })
}

// A step holds the bytes that a scripted server receives and those that it answers, in
// hex, and what else it does then.
type step struct {
	receive, answer string
	then            func()
}

// connected is the first step of every connection of a client.
var connected = step{receive: hello + numKeys, answer: "0000000000000000"}

// scripted starts a server that performs the steps on each connection, and then waits for
// its end. Any other bytes that it receives are an error.
func scripted(t *testing.T, steps ...step) (addr string) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(func() {
		ln.Close()
		wg.Wait()
	})
	serve := func(nc net.Conn) {
		defer nc.Close()
		for _, step := range steps {
			want := unhex(t, step.receive)
			got := make([]byte, len(want))
			if _, err := io.ReadFull(nc, got); err != nil {
				return // the client gave up
			}
			if !bytes.Equal(got, want) {
				t.Errorf("the server received %x, want %x", got, want)
				return
			}
			nc.Write(unhex(t, step.answer))
			if step.then != nil {
				step.then()
			}
		}
		if n, _ := nc.Read(make([]byte, 1)); n > 0 {
			t.Error("the server received more than it should")
		}
	}
	wg.Go(func() {
		for {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { serve(nc) })
		}
	})
	return ln.Addr().String()
}

// If the server has answered a wait before the client cancels it, the client reads both
// replies and uses the connection again.
func TestCancelAfterAnswer(t *testing.T) {
	const waitK = "06 0100000000000000 0200000000000000 2f6b"
	cancels := make(chan context.CancelFunc, 1)
	giveUp := func() { (<-cancels)() }
	c := dial(t, scripted(t, connected,
		step{waitK, "", giveUp}, step{receive: "0c", answer: "00 01"},
		step{waitK, "", giveUp}, step{receive: "0c", answer: "01"},
		step{receive: numKeys, answer: "0700000000000000"},
	), nil)
	for range 2 {
		ctx, cancel := context.WithCancel(withPatience(t))
		cancels <- cancel
		if err := c.Wait(ctx, "k"); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	if n, err := c.NumKeys(withPatience(t)); err != nil || n != 7 {
		t.Errorf("got %d, %v", n, err)
	}
}

// If a key is deleted between the wait and the read, the client waits again.
func TestGetOfDeletedKey(t *testing.T) {
	const k = "0200000000000000 2f6b"
	c := dial(t, scripted(t, connected,
		step{receive: "06 0100000000000000" + k, answer: "00"}, step{receive: "03" + k, answer: "0000000000000000"},
		step{receive: "05 0100000000000000" + k, answer: "01"},
		step{receive: "06 0100000000000000" + k, answer: "00"}, step{receive: "03" + k, answer: "0100000000000000 76"},
	), nil)
	if v, err := c.Get(withPatience(t), "k"); err != nil || string(v) != "v" {
		t.Errorf("got %q, %v", v, err)
	}
}

// A server that stops answering counts as lost after the timeout. If the context ends
// first, the call ends with it.
func TestSilentServer(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{}, 2)
	addr := scripted(t, connected, step{
		receive: "04 0200000000000000 2f6b 0100000000000000",
		then:    func() { asked <- struct{}{} },
	})
	c := dial(t, addr, &ClientOptions{Timeout: 500 * time.Millisecond}) // it must suffice to connect and to ask
	_, err := c.Add(withPatience(t), "k", 1)
	if !errors.Is(err, ErrServerLost) || !strings.Contains(err.Error(), "no answer within 500ms") {
		t.Errorf("got %v", err)
	}
	<-asked
	c = dial(t, addr, nil)
	ctx, cancel := context.WithCancel(withPatience(t))
	go func() {
		<-asked
		cancel()
	}()
	if _, err := c.Add(ctx, "k", 1); !errors.Is(err, context.Canceled) || errors.Is(err, ErrServerLost) {
		t.Errorf("got %v", err)
	}
}

// The client refuses a reply whose stated length exceeds the limits.
func TestHostileServer(t *testing.T) {
	c := dial(t, scripted(t, connected,
		step{receive: "02 0200000000000000 2f6b 0000000000000000 0000000000000000", answer: "ffffffffffffff7f"}), nil)
	_, err := c.CompareAndSet(withPatience(t), "k", nil, nil)
	if !errors.Is(err, ErrLimit) || !errors.Is(err, ErrServerLost) {
		t.Errorf("got %v", err)
	}
}

// A client checks the limits before it sends a request, so that it keeps its connection.
func TestClientChecksLimits(t *testing.T) {
	limits := Limits{KeyBytes: 4, ValueBytes: 8, RequestKeys: 2, RequestBytes: 20}
	s := listen(t, &ServerOptions{Limits: limits})
	c := dial(t, s.Addr(), &ClientOptions{Limits: limits})
	for _, s := range []handle{c, s.Local()} {
		ctx := withPatience(t)
		for name, err := range map[string]error{
			"key":   s.Set(ctx, "long", nil), // with its slash
			"value": s.Set(ctx, "k", make([]byte, 9)),
			"keys":  s.Wait(ctx, "a", "b", "c"),
			"total": s.MultiSet(ctx, []string{"aaa", "bbb"}, [][]byte{make([]byte, 8), make([]byte, 8)}),
		} {
			if !errors.Is(err, ErrLimit) || errors.Is(err, ErrServerLost) {
				t.Errorf("%s: got %v", name, err)
			}
		}
		if n, err := s.NumKeys(ctx); n != 0 || err != nil {
			t.Errorf("%d keys, %v", n, err)
		}
	}
}

func TestPing(t *testing.T) {
	if err := dial(t, listen(t, nil).Addr(), nil).ping(withPatience(t)); err != nil {
		t.Error(err)
	}
}

// Under a fake clock, the waits of a local store end by the fake clock.
func TestLocalUnderSynctest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := NewLocal()
		b := a.handle()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		go func() {
			time.Sleep(5 * time.Minute)
			b.Set(ctx, "k", []byte("v"))
		}()
		if v, err := a.Get(ctx, "k"); err != nil || string(v) != "v" {
			t.Errorf("got %q, %v", v, err)
		}
		err := a.Wait(ctx, "never")
		var op *OpError
		if !errors.As(err, &op) || op.Elapsed != 5*time.Minute || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
}

// After a failure, the next call opens a new connection, even if others were idle: they
// may be broken too.
func TestIdleConnectionsThatBroke(t *testing.T) {
	s, err := Listen("", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	c, err := Dial(t.Context(), s.Addr(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var conns [3]*clientConn
	for i := range conns {
		if conns[i], err = c.acquire(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, cn := range conns {
		c.release(cn)
		cn.nc.Close()
	}
	if _, err := c.Check(t.Context(), "key"); !errors.Is(err, ErrServerLost) {
		t.Errorf("over a broken connection: %v, want that the server is lost", err)
	}
	if _, err := c.Check(t.Context(), "key"); err != nil {
		t.Errorf("after that: %v", err)
	}
}
