package store

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// A logLines receives a Logger's output, line by line.
type logLines chan string

func (l logLines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

func newLog() (logLines, *slog.Logger) {
	lines := make(logLines, 100)
	return lines, slog.New(slog.NewTextHandler(lines, nil))
}

// expect fails the test unless the next line comes soon and contains all of parts.
func (l logLines) expect(t *testing.T, parts ...string) {
	t.Helper()
	select {
	case line := <-l:
		for _, p := range parts {
			if !strings.Contains(line, p) {
				t.Errorf("log line %q lacks %q", line, p)
			}
		}
	case <-time.After(patience):
		t.Fatalf("no log line; want %q", parts)
	}
}

// A rawConn is a client that sends arbitrary bytes.
type rawConn struct {
	t *testing.T
	net.Conn
}

func dialRaw(t *testing.T, s *Server) rawConn {
	t.Helper()
	nc, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	nc.SetDeadline(time.Now().Add(patience))
	return rawConn{t, nc}
}

func (c rawConn) send(frames string) {
	c.t.Helper()
	if _, err := c.Write(unhex(c.t, frames)); err != nil {
		c.t.Fatal(err)
	}
}

func (c rawConn) expect(reply string) {
	c.t.Helper()
	want := unhex(c.t, reply)
	got := make([]byte, len(want))
	if n, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want) {
		c.t.Fatalf("got %x, %v; want %x", got[:n], err, want)
	}
}

// expectClosed fails the test if the server sends anything more, or keeps the connection
// open.
func (c rawConn) expectClosed() {
	c.t.Helper()
	if n, err := c.Read(make([]byte, 1)); n != 0 || errors.Is(err, context.DeadlineExceeded) {
		c.t.Fatalf("got %d bytes, %v; want the end", n, err)
	}
}

const (
	hello   = "00 cef7853c "
	numKeys = "07 "
)

// This is the session of a PyTorch 1.13 client, byte for byte. It sends the code and the
// body of a request in separate segments.
func TestSessionDialect1(t *testing.T) {
	c := dialRaw(t, listen(t, nil))
	c.send("03 0500000000000000 696e69742f 0100000000000000") // init/ += 1
	c.expect("0100000000000000")
	c.send("00")
	c.send("0200000000000000 2f6b 0100000000000000 76") // set k v
	c.send("05 0100000000000000 0200000000000000 2f6b") // get k: wait, then get
	c.expect("00")
	c.send("02 0200000000000000 2f6b")
	c.expect("0100000000000000 76")
	c.send("06")
	c.expect("0200000000000000")
	c.send("08 0200000000000000 2f6b")
	c.expect("0100000000000000")
}

// This is the session of a 2.x client, which sends a PING when it connects.
func TestSessionDialect2(t *testing.T) {
	s := listen(t, nil)
	c := dialRaw(t, s)
	c.send(hello + "0d 39050000")
	c.expect("39050000")
	c.send("01 0200000000000000 2f6b 0100000000000000 76")
	c.send("06 0100000000000000 0200000000000000 2f6b")
	c.expect("00")
	c.send("03 0200000000000000 2f78") // an absent key reads as empty
	c.expect("0000000000000000")

	// A wait that is cancelled gets only the reply to the cancellation. A wait that was
	// already answered gets both replies.
	c.send("06 0100000000000000 0200000000000000 2f78")
	c.send("0c")
	c.expect("01")
	c.send("06 0100000000000000 0200000000000000 2f6b")
	c.send("0c")
	c.expect("00 01")
	if err := s.Local().Set(t.Context(), "x", nil); err != nil {
		t.Fatal(err)
	}
	c.send(numKeys)
	c.expect("0200000000000000")
}

// A 1.x client cannot cancel a wait. After a timeout it makes its next request. It would
// take a late reply to the wait for the reply to that request.
func TestRequestDropsParkedWait(t *testing.T) {
	s := listen(t, nil)
	c := dialRaw(t, s)
	c.send("05 0100000000000000 0200000000000000 2f78" + "06")
	c.expect("0000000000000000")
	if err := s.Local().Set(t.Context(), "x", nil); err != nil {
		t.Fatal(err)
	}
	c.send("06")
	c.expect("0100000000000000")
}

// Invalid bytes on a connection end only this connection. The log names the client and
// the reason.
func TestHostileFrames(t *testing.T) {
	for _, c := range []struct{ frames, why string }{
		{hello + "00 ffffffffffffffff", "must be the first request"},
		{hello + "0f 0200000000000000 2f6b", "unknown request code 15"},
		{"474554202f20485454502f312e31", "unknown request code 71"}, // GET / HTTP/1.1
		{"16030100", "unknown request code 22"},                     // a TLS hello
		{"00 cef7853d 00000000", "bytes in a key"},                  // the wrong magic number
		{hello + "01 0100000000000000 61 ffffffffffffff7f", "bytes in a value"},
		{hello + "06 ffffffffffffffff", "keys in a request"},
		{hello + "01 0100000000000000 61 0000000000000000", "2 keys in the table, at most 1"},
		{hello + "04 0200000000000000 2f6b 0100000000000000", "not an integer"},
	} {
		lines, logger := newLog()
		s := listen(t, &ServerOptions{Logger: logger, Limits: Limits{Keys: 1}})
		good := dialRaw(t, s)
		good.send(hello + "01 0200000000000000 2f6b 0100000000000000 76" + numKeys)
		good.expect("0100000000000000")
		bad := dialRaw(t, s)
		bad.send(c.frames)
		bad.expectClosed()
		lines.expect(t, c.why, "count=1", "peer="+bad.LocalAddr().String())
		good.send(numKeys)
		good.expect("0100000000000000")
	}
}

// A client must complete a request in time once it has begun it. A connection without
// requests may stay: otherwise a 1.x client with such a connection would spin on a CPU.
func TestHalfOpenFrames(t *testing.T) {
	t.Parallel()
	for _, frames := range []string{"00", "00 cef7", hello + "01", hello + "01 0200000000000000 2f6b 01"} {
		t.Run(frames, func(t *testing.T) {
			t.Parallel()
			lines, logger := newLog()
			s := listen(t, &ServerOptions{Logger: logger, FrameTimeout: 250 * time.Millisecond})
			silent := dialRaw(t, s)
			c := dialRaw(t, s)
			c.send(frames)
			c.expectClosed()
			lines.expect(t, "not complete within 250ms", "peer="+c.LocalAddr().String())
			silent.send(hello + numKeys)
			silent.expect("0000000000000000")
		})
	}
}

func TestClientLimit(t *testing.T) {
	lines, logger := newLog()
	s := listen(t, &ServerOptions{Logger: logger, Clients: 1})
	first := dialRaw(t, s)
	first.send(hello + numKeys)
	first.expect("0000000000000000")
	second := dialRaw(t, s)
	second.send(hello + numKeys)
	second.expectClosed()
	lines.expect(t, "connection rejected", "2 connections of clients without proof, at most 1", "peer="+second.LocalAddr().String())
	first.send(numKeys)
	first.expect("0000000000000000")
}

// All connections share the memory in flight, except for the memory that each has of its
// own. A connection returns it when a request is done, when a wait ends, or when the
// connection ends.
func TestInFlightLimit(t *testing.T) {
	lines, logger := newLog()
	const limit = 30 << 10
	s := listen(t, &ServerOptions{Logger: logger, InFlightBytes: limit})
	taken := func() int64 { return s.pools[unproven].taken.Load() }
	wait := func(keys int) []byte { // of 100 bytes each
		names := make([]string, keys)
		for i := range names {
			names[i] = fmt.Sprintf("%0100d", i)
		}
		return encode(func(w *bufio.Writer) { writeRequest(w, dialect2, request{op: opWait, keys: names}) })
	}
	parked := dialRaw(t, s)
	parked.send(hello + strings.Repeat("01 0200000000000000 2f6b 0100000000000000 76", 10))
	parked.Write(wait(256))
	waitFor(t, func() bool { return taken() >= 20<<10 })
	refused := dialRaw(t, s)
	refused.send(hello)
	refused.Write(wait(256))
	refused.expectClosed()
	lines.expect(t, "bytes in flight, at most 30720")
	small := dialRaw(t, s) // fits into what is its own
	small.send(hello)
	small.Write(wait(100))
	small.send(numKeys)
	small.expect("0100000000000000")
	parked.send("0c")
	parked.expect("01")
	if n := taken(); n != 0 {
		t.Errorf("%d bytes in flight after the wait", n)
	}
	parked.Write(wait(256))
	waitFor(t, func() bool { return taken() >= 20<<10 })
	parked.Close()
	waitFor(t, func() bool { return taken() == 0 })
}

// waitFor waits until cond returns true. It is for states that cause no event.
func waitFor(t *testing.T, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("condition not met")
		}
	}
}

// The server drops a client that requests much and reads nothing. Other clients do not
// wait for it.
func TestSlowReader(t *testing.T) {
	t.Parallel()
	lines, logger := newLog()
	s := listen(t, &ServerOptions{Logger: logger, FrameTimeout: 500 * time.Millisecond})
	host := s.Local()
	if err := host.Set(t.Context(), "big", make([]byte, 4<<20)); err != nil {
		t.Fatal(err)
	}
	slow := dialRaw(t, s)
	slow.Conn.(*net.TCPConn).SetReadBuffer(4 << 10)
	slow.send(hello + strings.Repeat("03 0400000000000000 2f626967", 8))
	other := dial(t, s.Addr(), nil)
	for range 100 {
		if err := other.Set(withPatience(t), "k", []byte("v")); err != nil {
			t.Fatal(err)
		}
	}
	lines.expect(t, "GET", "timeout", "peer="+slow.LocalAddr().String())
}

func TestReplyLimit(t *testing.T) {
	lines, logger := newLog()
	s := listen(t, &ServerOptions{Logger: logger, Limits: Limits{RequestBytes: 100}})
	if err := s.Local().Set(t.Context(), "k", make([]byte, 60)); err != nil {
		t.Fatal(err)
	}
	c := dial(t, s.Addr(), nil)
	if _, err := c.MultiGet(withPatience(t), "k"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.MultiGet(withPatience(t), "k", "k"); !errors.Is(err, ErrServerLost) {
		t.Errorf("got %v", err)
	}
	lines.expect(t, "MULTI_GET", "120 bytes in a reply, at most 100")
}

// Close ends the waits on every kind of handle, and returns.
func TestServerClose(t *testing.T) {
	s := listen(t, nil)
	var wg sync.WaitGroup
	for _, c := range []struct {
		s    handle
		want error
	}{
		{s.Local(), ErrClosed},
		{dial(t, s.Addr(), nil), ErrServerLost},
		{dial(t, s.Addr(), &ClientOptions{Legacy: true}), ErrServerLost},
	} {
		wg.Go(func() {
			ctx := withPatience(t)
			if err := c.s.Wait(ctx, "never"); !errors.Is(err, c.want) {
				t.Errorf("pending: got %v, want %v", err, c.want)
			}
			if err := c.s.Set(ctx, "k", nil); !errors.Is(err, c.want) {
				t.Errorf("later: got %v, want %v", err, c.want)
			}
		})
	}
	waitFor(t, func() bool {
		s.table.mu.Lock()
		defer s.table.mu.Unlock()
		return len(s.table.parked["/never"]) == 3
	})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if err := s.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
}

func TestListenErrors(t *testing.T) {
	s := listen(t, nil)
	if !strings.HasPrefix(s.Addr(), "127.0.0.1:") {
		t.Errorf("listens on %s by default", s.Addr())
	}
	if _, err := Listen(s.Addr(), nil); err == nil || strings.Count(err.Error(), s.Addr()) != 1 || !strings.Contains(err.Error(), "another job or program has the port") {
		t.Errorf("second server on the address: %v", err)
	}
	var lookup *net.DNSError
	if _, err := Listen("256.0.0.0:0", nil); !errors.As(err, &lookup) || err.Error() != "store 256.0.0.0:0: no such host" {
		t.Errorf("a host that is none: %v", err)
	}
}

// A server that is closed answers no request, not even on a connection that is still
// open. A client would take the server for a live one.
func TestClosedServerIsSilent(t *testing.T) {
	s, err := Listen("", &ServerOptions{Member: Member{Insecure: true}, Logger: slog.New(slog.DiscardHandler)}) // a pipe is nobody's
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	theirs, ours := net.Pipe()
	defer theirs.Close()
	s.slots.add(ours)
	ended := make(chan error, 1)
	go func() {
		ended <- newServerConn(s, ours).serve()
		ours.Close()
	}()
	client := newClientConn(theirs, &ClientOptions{Limits: Limits{}.withDefaults(), Timeout: patience})
	if err := client.open(t.Context()); err == nil {
		_, err = client.exchange(t.Context(), request{op: opNumKeys})
		if err == nil {
			t.Error("it answers")
		}
	}
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v, want that the server is closed", err)
	}
}
