package rendezvous

import (
	"bytes"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/wire"
)

// traffic counts the messages between agents and a host, and their bytes.
type traffic struct{ messages, bytes int }

// joinEncoded has an agent in this process join. Its messages are encoded and decoded as on a connection.
func (h *Host) joinEncoded(node NodeInfo, t *traffic) *Session {
	s := newSession(1)
	p := &peer{addr: "10.0.0.1", local: true, cut: func() {}}
	transfer := func(from, to any) {
		b := wire.Encode(from)
		t.messages++
		t.bytes += len(b)
		if err := wire.Decode(bytes.NewReader(b), maxMessage, to); err != nil {
			panic(err)
		}
	}
	p.send = func(m *toAgent) bool {
		var received toAgent
		transfer(m, &received)
		return s.receive(&received) == nil
	}
	s.send = func(m *toHost) {
		var received toHost
		transfer(m, &received)
		if err := h.receive(p, &received); err != nil {
			panic(err)
		}
	}
	s.send(&toHost{Join: &joinMessage{node, h.opts.Limits, 29500}})
	return s
}

// play has n agents join, begins a round, has one worker fail, begins another round, and ends the job. It
// returns the traffic and the time that it took.
func play(t *testing.T, n int) (traffic, time.Duration) {
	t.Helper()
	h := NewHost(t.Context(), HostOptions{Limits: Limits{MinNodes: n, MaxNodes: n, MaxRestarts: 1}, Credentials: Credentials{JobID: "job", Secret: make([]byte, 16)}})
	defer h.Close()
	var sum traffic
	start := time.Now()
	agents := make([]*Session, n)
	for i := range agents {
		agents[i] = h.joinEncoded(NodeInfo{Host: "node", Workers: 8, Rank: -1}, &sum)
	}
	for round := range 2 {
		for i, s := range agents {
			if r := nextRound(t, s); r.Number != round || r.Node != i || r.WorldSize != 8*n {
				t.Fatalf("agent %d has %+v", i, r)
			}
		}
		if round == 0 {
			agents[n/2].Failed(workerFailure(5, time.Now()))
			for _, s := range agents {
				if o := next(t, s); o.Stop == nil {
					t.Fatalf("order %+v", o)
				}
			}
		}
		for _, s := range agents {
			s.Ended(roundOf(s), false, nil, 29500)
		}
	}
	for _, s := range agents {
		if o := next(t, s); o.End == nil || len(o.End.Failures) != 0 {
			t.Fatalf("order %+v", o)
		}
	}
	return sum, time.Since(start)
}

// The messages and bytes of an agent do not depend on the number of agents.
func TestRendezvousGrowsWithTheNumberOfAgents(t *testing.T) {
	n := 100
	if testkit.IsLong() {
		n = 1000
	}
	small, smallTime := play(t, n)
	large, largeTime := play(t, 10*n)
	t.Logf("%d agents: %d messages, %d bytes, %v; ten times as many: %d, %d, %v", n, small.messages, small.bytes, smallTime, large.messages, large.bytes, largeTime)
	if large.messages > 10*10*n {
		t.Errorf("%d messages of %d agents, want at most 10 each", large.messages, 10*n)
	}
	if large.messages > 11*small.messages || large.bytes > 11*small.bytes {
		t.Errorf("%d agents: %+v, ten times as many: %+v", n, small, large)
	}
}

// A thousand agents take part over TLS connections.
func TestThousandAgentsOverTCP(t *testing.T) {
	testkit.Long(t)
	const n = 1000
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil || files.Cur < 3*n {
		t.Skipf("this process may open %d files, and %d agents need %d: %v", files.Cur, n, 3*n, err)
	}
	j := newJobOf(t, HostOptions{Limits: Limits{MinNodes: n, MaxNodes: n, MaxRestarts: 1}, Heartbeat: 5 * time.Second})
	start := time.Now()
	agents := make([]*Remote, n)
	var wg sync.WaitGroup
	dialling := make(chan struct{}, 64)
	for i := range agents {
		wg.Go(func() {
			dialling <- struct{}{}
			agents[i] = j.dial("node")
			<-dialling
		})
	}
	wg.Wait()
	each := func(do func(r *Remote)) {
		for _, r := range agents {
			wg.Go(func() { do(r) })
		}
		wg.Wait()
	}
	each(func(r *Remote) { nextRound(t, r.Session) })
	joined := time.Now()
	agents[n/2].Failed(workerFailure(5, time.Now()))
	each(func(r *Remote) {
		if o := next(t, r.Session); o.Stop == nil {
			t.Errorf("order %+v, want a stop", o)
		}
	})
	notified := time.Now()
	each(func(r *Remote) {
		r.Ended(roundOf(r.Session), false, nil, 0)
		if round := nextRound(t, r.Session); round.Number != 1 || round.Nodes != n {
			t.Errorf("round %+v", round)
		}
		r.Ended(roundOf(r.Session), false, nil, 0)
		if o := next(t, r.Session); o.End == nil {
			t.Errorf("order %+v, want the end", o)
		}
	})
	t.Logf("joined after %v, a failure known to all after %v, a round and the end after %v", joined.Sub(start), notified.Sub(joined), time.Since(notified))
}
