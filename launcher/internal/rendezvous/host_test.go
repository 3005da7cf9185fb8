package rendezvous

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/goddp/goddp/internal/handshake"
	"github.com/goddp/goddp/internal/store"
	"github.com/goddp/goddp/internal/testkit"
)

// job is a rendezvous with agents, of which the first is in the host's process.
type job struct {
	t    *testing.T
	host *Host
	id   *Identity
	addr string
	opts HostOptions
}

func newJob(t *testing.T, l Limits) *job {
	t.Helper()
	return newJobOf(t, HostOptions{Limits: l, LastCall: 20 * time.Millisecond, Heartbeat: 10 * time.Second})
}

func newJobOf(t *testing.T, o HostOptions) *job {
	t.Helper()
	id, err := NewIdentity([]byte("token"), "job")
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o.Credentials = Credentials{JobID: "job", Secret: []byte("a secret of more than 16 bytes")}
	j := &job{t: t, id: id, addr: ln.Addr().String(), opts: o, host: NewHost(t.Context(), o)}
	j.host.Serve(ln, id)
	t.Cleanup(func() {
		if err := j.host.Close(); err != nil {
			t.Error(err)
		}
	})
	return j
}

func (j *job) dial(name string) *Remote {
	j.t.Helper()
	ctx, cancel := context.WithTimeout(j.t.Context(), testkit.Soon)
	defer cancel()
	r, err := Dial(ctx, DialOptions{
		Addr: j.addr, Identity: j.id, Node: NodeInfo{Host: name, Workers: 2, Rank: -1}, Limits: j.opts.Limits, Heartbeat: j.opts.Heartbeat,
	})
	if err != nil {
		j.t.Fatal(err)
	}
	j.t.Cleanup(r.Close)
	return r
}

// next returns the next order of a session.
func next(t *testing.T, s *Session) Order {
	t.Helper()
	select {
	case o := <-s.Orders():
		return o
	case <-time.After(testkit.Soon):
		t.Fatalf("no order within %v", testkit.Soon)
	}
	panic("unreachable")
}

func nextRound(t *testing.T, s *Session) *Round {
	t.Helper()
	o := next(t, s)
	if o.Begin == nil {
		t.Fatalf("order %+v, want a round", o)
	}
	return o.Begin
}

func TestNodesTrainTogetherUntilOneIsLost(t *testing.T) {
	j := newJob(t, Limits{MinNodes: 2, MaxNodes: 3})
	local := j.host.Join(NodeInfo{Host: "a", Workers: 1, Rank: -1}, 1234)
	b := j.dial("b")
	// The last call is over before the third node joins.
	first, second := nextRound(t, local), nextRound(t, b.Session)
	want := Round{Nodes: 2, WorldSize: 3, Addr: "127.0.0.1", MasterAddr: "127.0.0.1", MasterPort: 1234,
		Credentials: j.opts.Credentials, StoreAddr: first.StoreAddr, CoordinatorAddr: first.CoordinatorAddr}
	if !reflect.DeepEqual(*first, want) {
		t.Errorf("node 0 has %+v, want %+v", *first, want)
	}
	if want.Node, want.FirstRank = 1, 1; !reflect.DeepEqual(*second, want) {
		t.Errorf("node 1 has %+v, want %+v", *second, want)
	}
	c := j.dial("c")
	if o := next(t, c.Session); !strings.Contains(o.Hold, "round 0 runs") {
		t.Errorf("the third node: %+v", o)
	}
	for _, s := range []*Session{local, b.Session} {
		if o := next(t, s); o.Stop == nil || !o.Stop.Gently {
			t.Errorf("a node joins: %+v", o)
		}
		s.Ended(roundOf(s), false, nil, 1235)
	}
	for i, s := range []*Session{local, b.Session, c.Session} {
		if r := nextRound(t, s); r.Number != 1 || r.Node != i || r.WorldSize != 5 {
			t.Errorf("node %d has %+v", i, r)
		}
		s.Ended(0, false, nil, 0) // tells the end of the round before once more, which ends nothing
	}
	b.Close()
	for _, s := range []*Session{local, c.Session} {
		if o := next(t, s); o.Stop == nil || o.Stop.Gently || !strings.Contains(o.Stop.Reason, "node 1 (b) lost: its agent ended") {
			t.Errorf("node 1 is lost: %+v", o)
		}
		s.Ended(roundOf(s), false, nil, 0)
	}
	for i, s := range []*Session{local, c.Session} {
		if r := nextRound(t, s); r.Number != 2 || r.Node != i || r.WorldSize != 3 {
			t.Errorf("node %d has %+v", i, r)
		}
	}
	c.Failed(workerFailure(1, time.Now()))
	for _, s := range []*Session{local, c.Session} {
		if o := next(t, s); o.Stop == nil {
			t.Errorf("a worker failed: %+v", o)
		}
		s.Ended(roundOf(s), false, nil, 0)
	}
	for _, s := range []*Session{local, c.Session} {
		if o := next(t, s); o.End == nil || len(o.End.Failures) != 1 || o.End.Failures[0].Host != "c" {
			t.Errorf("the job ends: %+v", o)
		}
	}
}

// The host refuses an agent with other settings, or with a rank that is taken, and both say why.
func TestAgentThatDoesNotFitIsRefused(t *testing.T) {
	var log bytes.Buffer
	j := newJobOf(t, HostOptions{Limits: Limits{MinNodes: 2, MaxNodes: 2, Static: true, Command: "train --lr 1"}, Log: slog.New(slog.NewTextHandler(&log, nil))})
	j.host.Join(NodeInfo{Host: "a", Workers: 1, Rank: 0}, 0)
	dial := func(name string, workers int, l Limits) {
		r, err := Dial(t.Context(), DialOptions{Addr: j.addr, Identity: j.id, Node: NodeInfo{Host: name, Workers: workers, Rank: 0}, Limits: l})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if o := next(t, r.Session); !errors.As(o.Err, new(*RefusedError)) {
			t.Errorf("%s: order %+v", name, o)
		}
	}
	dial("b", 1, Limits{MinNodes: 2, MaxNodes: 3, Static: true, Command: "train --lr 1"})
	dial("c", 1, j.opts.Limits)
	dial("d", 1, Limits{MinNodes: 2, MaxNodes: 2, Static: true, Command: "train --lr 2"})
	dial("e", 1<<40, j.opts.Limits)
	if err := j.host.Close(); err != nil { // nothing is logged any more
		t.Error(err)
	}
	for _, want := range []string{
		`host=b reason="it was started with --nnodes=2:3 --max-restarts=0 --rdzv-backend=static, the host of the rendezvous with --nnodes=2:2 --max-restarts=0 --rdzv-backend=static"`,
		`host=c reason="node rank 0 is taken, by a"`,
		`host=e reason="it has 1099511627776 workers, want 1 to 65536"`,
		`host=d reason="it was started with the program and arguments [train --lr 2], the host of the rendezvous with [train --lr 1]; if these are two jobs, give each its own --rdzv-id, and without etcd its own --rdzv-endpoint"`,
	} {
		if !strings.Contains(log.String(), `msg="rendezvous: node refused" `+want) {
			t.Errorf("no %s in\n%s", want, &log)
		}
	}
}

// The host gives up an agent that is silent. It sends the reason, which a suspended agent reads when it resumes.
func TestSilentAgentIsLost(t *testing.T) {
	j := newJobOf(t, HostOptions{Limits: Limits{MinNodes: 2, MaxNodes: 2}, Heartbeat: 50 * time.Millisecond})
	local := j.host.Join(NodeInfo{Host: "a", Workers: 1}, 0)
	silent := *j
	silent.opts.Heartbeat = time.Hour
	b := silent.dial("b")
	nextRound(t, local)
	if o := next(t, local); o.Stop == nil || !strings.Contains(o.Stop.Reason, "no heartbeat for 150ms") {
		t.Errorf("order %+v", o)
	}
	nextRound(t, b.Session)
	var refused *RefusedError
	if o := next(t, b.Session); !errors.As(o.Err, &refused) || refused.Reason != "it was silent for 150ms, so the host of the rendezvous gave it up: start it again" {
		t.Errorf("the silent agent: order %+v", o)
	}
}

func TestWorkersOfOtherNodesReachTheStore(t *testing.T) {
	j := newJob(t, Limits{MinNodes: 1, MaxNodes: 1})
	b := j.dial("b")
	round := nextRound(t, b.Session)
	f, err := newForwarder(b.Open)
	if err != nil {
		t.Fatal(err)
	}
	member := store.Member{Job: handshake.Job{ID: "job", World: round.WorldSize}, Rank: 0, Secret: j.opts.Credentials.Secret}
	kv, err := store.Dial(t.Context(), f.store.Addr().String(), &store.ClientOptions{Member: &member})
	if err != nil {
		t.Fatal(err)
	}
	if err := kv.Set(t.Context(), "key", []byte("value")); err != nil {
		t.Error(err)
	}
	if v, err := kv.Get(t.Context(), "key"); string(v) != "value" || err != nil {
		t.Errorf("%q, %v", v, err)
	}
	if err := kv.Close(); err != nil {
		t.Error(err)
	}
	if err := f.close(); err != nil {
		t.Error(err)
	}
}

func TestStrangersChangeNothing(t *testing.T) {
	j := newJob(t, Limits{MinNodes: 2, MaxNodes: 2})
	local := j.host.Join(NodeInfo{Host: "a", Workers: 1}, 0)
	other := *j
	var err error
	if other.id, err = NewIdentity([]byte("nekot"), "job"); err != nil {
		t.Fatal(err)
	}
	var refused *HandshakeError
	_, err = Dial(t.Context(), DialOptions{Addr: j.addr, Identity: other.id, Limits: j.opts.Limits})
	if !errors.As(err, &refused) || !errors.Is(err, errOtherToken) {
		t.Errorf("another token: %v", err)
	}
	for i := range 100 {
		c, err := net.Dial("tcp", j.addr)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(c, "%d nonsense", i)
		c.Close()
	}
	b := j.dial("b")
	for _, s := range []*Session{local, b.Session} {
		if r := nextRound(t, s); r.Nodes != 2 || r.Number != 0 {
			t.Errorf("round %+v", r)
		}
	}
}

// timed is a connection that knows its deadline.
type timed struct {
	net.Conn
	deadline time.Time
}

func (c *timed) SetDeadline(t time.Time) error {
	c.deadline = t
	return c.Conn.SetDeadline(t)
}

// An agent that proves its identity and then says nothing is cut off.
func TestSilentAgentIsCutOff(t *testing.T) {
	j := newJob(t, Limits{MinNodes: 2, MaxNodes: 2})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	dialled := make(chan error, 1)
	go func() {
		c, err := tls.Dial("tcp", ln.Addr().String(), j.id.Config())
		if err == nil {
			defer c.Close()
			_, err = io.Copy(io.Discard, c) // until the host ends the connection
		}
		dialled <- err
	}()
	c, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	conn := &timed{Conn: c}
	mux, err := j.host.accept(conn, j.id, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if conn.deadline.IsZero() || time.Until(conn.deadline) > time.Minute {
		t.Errorf("the host waits for Join until %v, want a minute", conn.deadline)
	}
	conn.SetDeadline(time.Unix(1, 0)) // which passes
	served := make(chan struct{})
	go func() {
		defer close(served)
		j.host.serve(conn, mux)
	}()
	select {
	case <-served:
	case <-time.After(testkit.Soon):
		t.Error("the host waits for Join without a deadline")
	}
	c.Close()
	<-dialled
}

// roundOf returns the number of the round that began last.
func roundOf(s *Session) int {
	round, _ := s.current()
	return round
}
