package host_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goddp/goddp/comm/failure"
	"github.com/goddp/goddp/comm/internal/host"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/testkit/coordinatortest"
)

// Some ranks do not join. All others name them, also a rank whose own time is not over. Ranks that
// join later get the first failure.
func TestAbsentRanksAreNamed(t *testing.T) {
	for _, absent := range [][]int{{0}, {3}, {1, 2}, {0, 1, 2}} {
		t.Run(fmt.Sprint("inproc", absent), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { joinWithout(t, absent, &host.Options{InProcess: host.NewInProcess()}) })
		})
		t.Run(fmt.Sprint("processes", absent), func(t *testing.T) {
			t.Parallel()
			joinWithout(t, absent, nil)
		})
	}
}

func joinWithout(t *testing.T, absent []int, opts *host.Options) {
	const size, short, long = 4, time.Second, time.Minute
	ranks := coordinatortest.Ranks(t, size)
	patient := 3 // has a long timeout; if it is absent, all ranks have a short one
	var wg sync.WaitGroup
	for r := range size {
		if slices.Contains(absent, r) {
			continue
		}
		timeout := short
		if r == patient && len(absent) < size-1 {
			timeout = long
		}
		wg.Go(func() {
			ctx, cancel := context.WithTimeoutCause(t.Context(), soon, errors.New("the wait does not end"))
			defer cancel()
			_, err := host.New(ctx, backend.Config{Rank: r, Size: size, Control: ranks[r], Timeout: timeout}, opts)
			var e *failure.AbsentError
			if !errors.As(err, &e) || !slices.Equal(e.Ranks, absent) || !errors.Is(err, failure.ErrTimeout) {
				t.Errorf("rank %d: %v, want a timeout that names ranks %v", r, err, absent)
			}
			if err != nil && (strings.Count(err.Error(), "not joined") != 1 || !strings.Contains(err.Error(), fmt.Sprintf(": timed out after %v: rank", short))) {
				t.Errorf("rank %d: %q does not say once who has not joined, and for how long it was waited", r, err)
			}
		})
	}
	wg.Wait()
	late := backend.Config{Rank: absent[0], Size: size, Control: ranks[absent[0]], Timeout: time.Minute}
	if _, err := host.New(t.Context(), late, opts); err == nil || strings.Count(err.Error(), "could not join") != 1 {
		t.Errorf("rank %d, too late: %v, want the first failure", absent[0], err)
	}
}

// Rank 0 cannot listen. All other ranks get its reason.
func TestJoinFailureReachesAllRanks(t *testing.T) {
	ranks := coordinatortest.Ranks(t, 3)
	for r, o := range []*host.Options{{Listen: "256.0.0.1:0"}, nil, nil} {
		_, err := host.New(t.Context(), backend.Config{Rank: r, Size: 3, Control: ranks[r], Timeout: time.Minute}, o)
		if err == nil || !strings.Contains(err.Error(), "256.0.0.1") {
			t.Errorf("rank %d: %v, want rank 0's reason", r, err)
		} else if prefix := ": rank 0 could not join: "; strings.Contains(err.Error(), prefix) != (r > 0) || strings.Count(err.Error(), "could not join") != min(r, 1) {
			t.Errorf("rank %d: %v, want %q once on the other ranks alone", r, err, prefix)
		}
		if e := (*failure.JoinError)(nil); errors.As(err, &e) != (r > 0) || r > 0 && e.Rank != 0 {
			t.Errorf("rank %d: %v does not tell rank 0's failure from its own", r, err)
		}
		if errors.Is(err, failure.ErrTimeout) {
			t.Errorf("rank %d: %v is a timeout", r, err)
		}
	}
}

// busyPeer opens connections on behalf of a rank to peers that are too busy at first: the listener ends
// the first connection to each address without a word.
type busyPeer struct {
	t    *testing.T
	mu   sync.Mutex
	seen map[string]bool
}

func (b *busyPeer) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	b.mu.Lock()
	isFirst := !b.seen[addr]
	b.seen[addr] = true
	b.mu.Unlock()
	if isFirst && network == "unix" {
		return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.EAGAIN} // its backlog is full
	}
	if isFirst {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer ln.Close()
		addr = ln.Addr().String()
		go func() {
			if c, err := ln.Accept(); err == nil {
				c.Close()
			}
		}()
	}
	c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if tcp, ok := c.(*net.TCPConn); ok {
		return &patientConn{tcp, b.t}, err
	}
	return c, err
}

// patientConn is a connection whose owner may set no deadline but one in the past, by which it gives up.
type patientConn struct {
	*net.TCPConn
	t *testing.T
}

func (c *patientConn) SetDeadline(d time.Time) error {
	if d.After(time.Now()) {
		c.t.Errorf("a rank waits for its peer until %v, and not as long as it waits for the group", d)
	}
	return c.TCPConn.SetDeadline(d)
}

// A rank waits for its peers as long as its timeout says, and dials a peer again that has had no time for it.
func TestBusyPeersAreWaitedFor(t *testing.T) {
	for _, transport := range []string{"shm", "tcp"} {
		opts := transports[transport]()
		world(t, 3, func(r int) *host.Options {
			o := opts(r)
			if o == nil {
				o = &host.Options{}
			}
			o.SetDial((&busyPeer{t: t, seen: map[string]bool{}}).dial)
			return o
		}, nil)
	}
}

// Ranks of one host that cannot share memory say so in one line.
func TestOneLineSaysThatMemoryIsNotShared(t *testing.T) {
	const size = 4
	var said bytes.Buffer
	log := slog.New(slog.NewTextHandler(&said, nil)) // one for all ranks: it writes one line at a time
	world(t, size, func(int) *host.Options {
		o := &host.Options{}
		o.SetDial(func(ctx context.Context, network, addr string) (net.Conn, error) {
			if network == "unix" {
				return nil, errors.New("not here")
			}
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		})
		return o
	}, func(_ int, cfg *backend.Config) { cfg.Log = log })
	if n := strings.Count(said.String(), "\n"); n != size-1 || !strings.Contains(said.String(), `rank=3 count=3 peers="ranks 0-2" error="not here"`) {
		t.Errorf("%d lines, want one of each rank that dials:\n%s", n, &said)
	}
}

// A rank cannot connect to a peer whose process has ended. Its error says so, by which comm knows that the rank itself is not at
// fault.
func TestEndedPeerIsKnownByTheError(t *testing.T) {
	ranks := coordinatortest.Ranks(t, 2)
	var wg sync.WaitGroup
	for r := range 2 {
		wg.Go(func() {
			o := &host.Options{}
			o.SetDial(func(_ context.Context, network, _ string) (net.Conn, error) {
				return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
			})
			_, err := host.New(t.Context(), backend.Config{Rank: r, Size: 2, Control: ranks[r], Timeout: time.Minute}, o)
			if isDialler := r == 1; errors.Is(err, syscall.ECONNREFUSED) != isDialler {
				t.Errorf("rank %d: %v", r, err)
			}
		})
	}
	wg.Wait()
}
