package comm_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/internal/store"
	"github.com/goddp/goddp/internal/testkit"
)

// proxy forwards the connections of one address to a server, through a function that may alter what the clients send.
// The method follow replaces the server by another one.
type proxy struct {
	ln net.Listener
	wg sync.WaitGroup

	mu    sync.Mutex
	to    string // the server's address; "" after the test
	conns []net.Conn
}

func newProxy(t *testing.T, to string, alter func([]byte) []byte) *proxy {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &proxy{ln: ln, to: to}
	s.wg.Go(func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			out, err := net.Dial("tcp", s.to)
			if err != nil {
				if s.to != "" {
					t.Error(err)
				}
				in.Close()
			} else {
				s.conns = append(s.conns, in, out)
				s.wg.Go(func() {
					defer in.Close()
					io.Copy(in, out)
				})
				s.wg.Go(func() {
					defer out.Close()
					b := make([]byte, 64<<10)
					for {
						n, err := in.Read(b)
						if err != nil {
							return
						}
						out.Write(alter(b[:n]))
					}
				})
			}
			s.mu.Unlock()
		}
	})
	t.Cleanup(func() {
		ln.Close()
		s.follow("")
		s.wg.Wait()
	})
	return s
}

// follow closes all connections. From then on the proxy forwards new connections to the server
// at address `to`.
func (s *proxy) follow(to string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.to = to
	for _, c := range s.conns {
		c.Close()
	}
	s.conns = nil
}

// A rank that waits for the job's store says so, and how long it will wait.
func TestRankSaysThatItWaitsForTheStore(t *testing.T) {
	testkit.Long(t) // it says so after 3 s
	port, addr := testkit.Port(t)
	world := comm.World{Rank: 1, Size: 2, MasterAddr: "127.0.0.1", MasterPort: port}
	wantsPeers(t, &comm.Options{World: &world}, `\[Rank 1\] waiting for the job's store at `+addr+`: connection refused; giving up in 5\ds"`)
}

// Rank 0 says that it waits for the other ranks, and how long it will wait.
func TestRank0SaysThatItWaitsForTheOthers(t *testing.T) {
	port, _ := testkit.Port(t)
	opts := &comm.Options{World: &comm.World{Rank: 0, Size: 2, MasterAddr: "127.0.0.1", MasterPort: port}}
	comm.SetNotice(opts, time.Millisecond)
	wantsPeers(t, opts, `\[Rank 0\] waiting until all 2 ranks have joined; giving up in (1m0|5\d)s"`)
}

// wantsPeers starts one rank, which waits for its peers. It checks the first line that the rank logs.
func wantsPeers(t *testing.T, opts *comm.Options, line string) {
	t.Helper()
	r, w := io.Pipe()
	opts.Device = cpu.New(&cpu.Options{BLAS: cpu.Gonum})
	opts.Timeout, opts.Log = time.Minute, slog.New(slog.NewTextHandler(w, nil))
	ctx, cancel := context.WithCancel(t.Context())
	var rank sync.WaitGroup
	rank.Go(func() {
		defer w.Close()
		if _, err := comm.Init(ctx, opts); !errors.Is(err, context.Canceled) {
			t.Errorf("Init returned %v", err)
		}
	})
	got, err := bufio.NewReader(r).ReadString('\n')
	r.Close()
	cancel()
	rank.Wait()
	if err != nil || !regexp.MustCompile(line).MatchString(got) {
		t.Errorf("it logs %q, %v, want %q", got, err, line)
	}
}

// The errors of all other ranks name a rank that does not join, also if the missing rank has to
// host the store. If rank 0 hosts it, the other ranks get the error from the store before the store ends with rank 0.
func TestAnAbsentRankIsNamed(t *testing.T) {
	t.Parallel()
	for absent, want := range map[int]string{
		0: "rank 0, which hosts the job's store, has not started, has ended or cannot be reached: store 127.0.0.1:",
		2: "rank 2 has not joined: it did not start, ended early, or cannot reach the store",
	} {
		t.Run(fmt.Sprint("rank ", absent), func(t *testing.T) {
			t.Parallel()
			port, _ := testkit.Port(t)
			var ranks sync.WaitGroup
			for r := range 4 {
				if r == absent {
					continue
				}
				timeout := time.Hour
				if r == 0 || absent == 0 {
					timeout = 2 * time.Second
				}
				ranks.Go(func() {
					w := comm.World{Rank: r, Size: 4, LocalRank: r, MasterAddr: "127.0.0.1", MasterPort: port}
					_, err := comm.Init(t.Context(), &comm.Options{World: &w, Timeout: timeout})
					if !errors.Is(err, comm.ErrTimeout) || !strings.Contains(err.Error(), want) {
						t.Errorf("rank %d: %v, want %q", r, err, want)
					}
				})
			}
			ranks.Wait()
		})
	}
}

// A rank that joins its second group early connects to the store of the first group. When the
// first store ends, the rank connects to the second store. Messages for the first store must
// not reach the second store: it would count the rank as having left, or it would wait for
// messages that nobody sends.
func TestJoinContinuesAtTheNextStore(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var servers []*store.Server
	for range 2 {
		server, err := store.Listen("", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer server.Close()
		servers = append(servers, server)
	}
	at := newProxy(t, servers[0].Addr(), func(b []byte) []byte { return b })
	var rank sync.WaitGroup
	defer func() {
		cancel()
		rank.Wait()
	}()
	rank.Go(func() {
		w := comm.World{Rank: 1, Size: 2, MasterAddr: "127.0.0.1", MasterPort: at.ln.Addr().(*net.TCPAddr).Port}
		if pg, err := comm.Init(ctx, &comm.Options{World: &w}); err == nil {
			t.Error("a group of one, where two were wanted")
			pg.Close()
		}
	})
	const joining = "goddp/0/groups/1"
	if err := servers[0].Local().Wait(ctx, joining); err != nil {
		t.Fatal(err)
	}
	at.follow(servers[1].Addr()) // the rank may be at any point of its join
	next := servers[1].Local()
	if err := next.Wait(ctx, joining); err != nil {
		t.Fatal(err)
	}
	if left, err := next.Check(ctx, "goddp/left"); err != nil || left {
		t.Errorf("the rank has left the next store, where it has just come: %v, %v", left, err)
	}
}
