package rendezvous

import (
	"bytes"
	"testing"
	"time"

	"github.com/goddp/goddp/internal/frame"
)

// traffic counts the messages between agents and a host, and their bytes.
type traffic struct{ messages, bytes int }

// joinEncoded has an agent in this process join. Its messages are encoded and decoded as on a connection.
func (h *Host) joinEncoded(node NodeInfo, t *traffic) *Session {
	s := newSession()
	p := &peer{addr: "10.0.0.1", local: true, cut: func() {}}
	transfer := func(from, to any) {
		b := frame.Encode(from)
		t.messages++
		t.bytes += len(b)
		if err := frame.Decode(bytes.NewReader(b), maxMessage, to); err != nil {
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
	h := NewHost(HostOptions{Limits: Limits{MinNodes: n, MaxNodes: n, MaxRestarts: 1}, Credentials: Credentials{JobID: "job", Secret: make([]byte, 16)}})
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
			agents[n/2].Failed(Failure{At: time.Now(), What: "rank 5 exited with 1"})
			for _, s := range agents {
				if o := next(t, s); o.Stop == nil {
					t.Fatalf("order %+v", o)
				}
			}
		}
		for _, s := range agents {
			s.Ended(false, nil, 29500)
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
	small, smallTime := play(t, 1000)
	large, largeTime := play(t, 10000)
	t.Logf("1000 agents: %d messages, %d bytes, %v; 10000 agents: %d, %d, %v", small.messages, small.bytes, smallTime, large.messages, large.bytes, largeTime)
	if n := large.messages; n > 10*10000 {
		t.Errorf("%d messages of 10000 agents, want at most 10 each", n)
	}
	if large.messages > 11*small.messages || large.bytes > 11*small.bytes {
		t.Errorf("10000 agents: %+v, 1000 agents: %+v", large, small)
	}
}
