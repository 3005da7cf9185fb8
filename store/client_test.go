package store

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// The server may come up after its clients.
func TestDialBeforeServer(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	dialled := make(chan error)
	go func() {
		c, err := Dial(withPatience(t), addr, nil)
		if err == nil {
			err = c.Set(withPatience(t), "k", nil)
			c.Close()
		}
		dialled <- err
	}()
	// What answers first is no store: that too is tried again.
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

func TestDialGivesUp(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	ln.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = Dial(ctx, addr, nil)
	if !errors.Is(err, ErrServerLost) || !errors.Is(err, context.DeadlineExceeded) ||
		!strings.Contains(err.Error(), "connection refused") || !strings.Contains(err.Error(), addr) {
		t.Errorf("got %v", err)
	}
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

// A process that makes one call at a time has one connection, also after waits
// that it gave up; one that waits n times at once has n, and keeps a few.
func TestConnections(t *testing.T) {
	s := listen(t, nil)
	c := dial(t, s.Addr(), nil)
	open := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.conns)
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

// Taking a wait back races with its answer; either way the connection is in
// step afterwards.
func TestCancelRacesWithAnswer(t *testing.T) {
	s := listen(t, nil)
	c := dial(t, s.Addr(), nil)
	host := s.Local()
	ctx := withPatience(t)
	for i := range 200 {
		key := fmt.Sprint(i)
		waitCtx, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := c.Wait(waitCtx, key); err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
		wg.Go(func() { host.Set(ctx, key, nil) })
		wg.Go(cancel)
		wg.Wait()
		if n, err := c.NumKeys(ctx); err != nil || n != int64(i+1) {
			t.Fatalf("NumKeys %d, %v; want %d", n, err, i+1)
		}
	}
}

// fakeServer accepts connections and hands each to serve.
func fakeServer(t *testing.T, serve func(nc net.Conn)) (addr string) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(func() {
		ln.Close()
		wg.Wait()
	})
	wg.Go(func() {
		for {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer nc.Close()
				serve(nc)
			})
		}
	})
	return ln.Addr().String()
}

// A server that stops answering is lost after the timeout; a context that ends
// first ends the call first.
func TestSilentServer(t *testing.T) {
	addr := fakeServer(t, func(nc net.Conn) {
		readAll(nc, unhex(t, hello+numKeys))
		nc.Write(make([]byte, 8))
		nc.Read(make([]byte, 1<<10)) // the request that gets no answer
		nc.Read(make([]byte, 1))     // the end
	})
	c := dial(t, addr, &ClientOptions{Timeout: 50 * time.Millisecond})
	err := c.Set(withPatience(t), "k", nil)
	if !errors.Is(err, ErrServerLost) || !strings.Contains(err.Error(), "no answer within 50ms") {
		t.Errorf("got %v", err)
	}
	c = dial(t, addr, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := c.Set(ctx, "k", nil); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrServerLost) {
		t.Errorf("got %v", err)
	}
}

// readAll reads as many bytes as want has.
func readAll(nc net.Conn, want []byte) {
	for n := 0; n < len(want); {
		m, err := nc.Read(want[n:])
		if err != nil {
			return
		}
		n += m
	}
}

// A reply beyond the limits is refused by what it claims.
func TestHostileServer(t *testing.T) {
	addr := fakeServer(t, func(nc net.Conn) {
		readAll(nc, unhex(t, hello+numKeys))
		nc.Write(make([]byte, 8))
		nc.Read(make([]byte, 1<<10))
		nc.Write(unhex(t, "ffffffffffffff7f"))
		nc.Read(make([]byte, 1))
	})
	c := dial(t, addr, nil)
	_, err := c.CompareAndSet(withPatience(t), "k", nil, nil)
	if !errors.Is(err, ErrLimit) || !errors.Is(err, ErrServerLost) {
		t.Errorf("got %v", err)
	}
}

// A client checks the limits before it sends, so that it keeps its connection.
func TestClientChecksLimits(t *testing.T) {
	limits := Limits{KeyBytes: 4, ValueBytes: 8, RequestKeys: 2, RequestBytes: 20}
	s := listen(t, &ServerOptions{Limits: limits})
	c := dial(t, s.Addr(), &ClientOptions{Limits: limits})
	for _, s := range []Store{c, s.Local()} {
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
	if err := dial(t, listen(t, nil).Addr(), nil).Ping(withPatience(t)); err != nil {
		t.Error(err)
	}
}

// Under a fake clock a Local's waits end by the clock, not by the wall.
func TestLocalUnderSynctest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := NewLocal()
		b := a.Handle()
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
