package netns

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goddp/goddp/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m, nil) }

// dial connects one host with an address of another. It must not take longer than a time.
func dial(h *Host, to netip.Addr, port int, most time.Duration) (c net.Conn, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), most)
	defer cancel()
	h.Do(func() {
		c, err = (&net.Dialer{}).DialContext(ctx, "tcp", netip.AddrPortFrom(to, uint16(port)).String())
	})
	return c, err
}

// listen has a host return all bytes that it receives at the port. It ends with the test.
func listen(t *testing.T, h *Host) (port int) {
	t.Helper()
	var ln net.Listener
	var err error
	h.Do(func() { ln, err = net.Listen("tcp", ":0") })
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() {
		cancel()
		ln.Close()
		wg.Wait()
	})
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			stop := context.AfterFunc(ctx, func() { c.Close() })
			wg.Go(func() {
				defer stop()
				defer c.Close()
				io.Copy(c, c)
			})
		}
	})
	return ln.Addr().(*net.TCPAddr).Port
}

// exchange sends a line and expects it back in a time.
func exchange(c net.Conn, most time.Duration) error {
	c.SetDeadline(time.Now().Add(most))
	if _, err := io.WriteString(c, "line\n"); err != nil {
		return err
	}
	_, err := bufio.NewReader(c).ReadString('\n')
	return err
}

// short is a time that is far longer than what takes place in it, and soon is one that may be long.
const (
	short = 300 * time.Millisecond
	soon  = 20 * time.Second
)

func TestPartitionsAreSilentAndHeal(t *testing.T) {
	testkit.Long(t)
	n := New(t, 3, 1)
	a, b, c := n.Hosts[0], n.Hosts[1], n.Hosts[2]
	port := listen(t, b)
	connect := func(from *Host) net.Conn {
		t.Helper()
		conn, err := dial(from, b.Addr(0), port, soon)
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	fromA, fromC := connect(a), connect(c)
	defer fromA.Close()
	defer fromC.Close()
	steps := []struct {
		name       string
		do, undo   func()
		reachesToo bool // whether c still reaches b
	}{
		{"one way", func() { n.Drop(b, a) }, n.Heal, true},
		{"the other way", func() { n.Drop(a, b) }, n.Heal, true},
		{"isolated", func() { n.Isolate(a) }, n.Heal, true},
		{"all but one isolated", func() { n.Isolate(a, c) }, n.Heal, false},
		{"disconnected", func() { a.SetConnected(false) }, func() { a.SetConnected(true) }, true},
	}
	for _, s := range steps {
		s.do()
		if err := exchange(fromA, short); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: the error is %v, want silence", s.name, err)
		}
		most := short
		if s.reachesToo {
			most = soon
		}
		if err := exchange(fromC, most); (err == nil) != s.reachesToo {
			t.Errorf("%s: the third host: %v", s.name, err)
		}
		if conn, err := dial(a, b.Addr(0), port, short); err == nil {
			conn.Close()
			t.Errorf("%s: a connection is made", s.name)
		}
		s.undo()
		for _, conn := range []net.Conn{fromA, fromC} { // lines that were not delivered come late
			if err := exchange(conn, soon); err != nil {
				t.Fatalf("%s, and healed: %v", s.name, err)
			}
		}
		fromA.Close()
		fromC.Close()
		fromA, fromC = connect(a), connect(c)
	}
}

func TestProcessesAreOnTheirHost(t *testing.T) {
	testkit.Long(t)
	n := New(t, 2, 1)
	for _, h := range n.Hosts {
		var out strings.Builder
		cmd := exec.CommandContext(t.Context(), "sh", "-c", "hostname; ip -brief addr")
		cmd.Stdout = &out
		if err := h.Start(cmd); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil || !strings.HasPrefix(out.String(), h.Name()+"\n") || !strings.Contains(out.String(), h.Addr(0).String()+"/24") {
			t.Errorf("%s: %v: %s", h.Name(), err, &out)
		}
	}
	cmd := exec.Command("sleep", "1000")
	if err := n.Hosts[1].Start(cmd); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(n.Hosts[1].Processes()); got != fmt.Sprintf("[pid %d (sleep 1000)]", cmd.Process.Pid) {
		t.Errorf("processes %s", got)
	}
	if got := n.Hosts[0].Processes(); len(got) > 0 {
		t.Errorf("processes %v on another host", got)
	}
	n.Hosts[1].killAll(n.Hosts[1].Processes()) // or it would fail the test as left over
	cmd.Wait()
}

// A process that begins to run a program has no arguments yet. It counts as a process all the same.
func TestProcessThatBeginsAProgram(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"cmdline", "stat"} {
		if err := syscall.Mkfifo(filepath.Join(dir, name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	wg.Go(func() { // each write waits until awaitArgs opens the file
		for _, w := range [][2]string{{"cmdline", ""}, {"stat", "7 (a) b) R 1 7 7"}, {"cmdline", "sleep\x001000\x00"}} {
			if err := os.WriteFile(filepath.Join(dir, w[0]), []byte(w[1]), 0); err != nil {
				t.Error(err)
			}
		}
	})
	if got := awaitArgs(dir); !slices.Equal(got, []string{"sleep", "1000"}) {
		t.Fatalf("the arguments are %q", got)
	}
	wg.Wait()
}

// A process that has ended has no arguments and gets none.
func TestZombieHasNoArguments(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"cmdline": "", "stat": "7 (a) b) Z 1 7 7"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := awaitArgs(dir); got != nil {
		t.Errorf("the arguments are %q", got)
	}
}
