package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goddp/goddp/internal/election"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/etcdtest"
	"github.com/goddp/goddp/launcher/internal/failure"
)

// openAgent opens an agent of a job whose other agents are on this host as well.
func openAgent(t *testing.T, name string, d Discovery, l Limits) *Agent {
	t.Helper()
	id, err := NewIdentity([]byte("token"), "job")
	if err != nil {
		t.Fatal(err)
	}
	a := Open(t.Context(), Options{
		Discovery: d, Identity: id, Node: NodeInfo{Host: name, Workers: 1, Rank: -1}, MasterPort: func() int { return 29500 },
		Host: HostOptions{Limits: l, Credentials: Credentials{JobID: "job", Secret: make([]byte, 16)}, Heartbeat: 10 * time.Second, LastCall: time.Minute},
	})
	t.Cleanup(func() { a.Close() })
	return a
}

func nextOrder(t *testing.T, a *Agent) Order {
	t.Helper()
	select {
	case o := <-a.Orders():
		return o
	case <-time.After(testkit.Soon):
		t.Fatalf("no order within %v", testkit.Soon)
	}
	panic("unreachable")
}

func awaitRound(t *testing.T, a *Agent) *Round {
	t.Helper()
	o := skipHolds(t, a) // on a busy machine the other agents come late
	if o.Begin == nil {
		t.Fatalf("order %+v, want a round", o)
	}
	return o.Begin
}

// An agent that cannot look up the endpoint's name says so once while it waits, and when its time is over.
func TestAgentThatFindsNoHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		a := Open(t.Context(), Options{
			Discovery: Endpoint{Addr: "node0:29400", lookup: func(ctx context.Context, host string) ([]net.IPAddr, error) {
				if time.Since(start) < 2*patience {
					return nil, errors.New("lookup node0: no such host")
				}
				<-ctx.Done() // the server of names does not answer any more
				return nil, fmt.Errorf("lookup node0: %w", ctx.Err())
			}},
			MasterPort: func() int { return 29500 }, Host: HostOptions{JoinTimeout: time.Minute},
		})
		defer a.Close()
		if o := <-a.Orders(); o.Hold != "the host of the rendezvous, node0:29400, cannot be reached yet: lookup node0: no such host" || time.Since(start) > 2*patience {
			t.Errorf("order %+v after %v", o, time.Since(start))
		}
		o := <-a.Orders()
		if want := "node0:29400: no host of the rendezvous was found in time: lookup node0: no such host"; o.Err == nil || o.Err.Error() != want {
			t.Errorf("order %+v, want %q", o, want)
		}
	})
}

// If another program listens on the endpoint's port and never answers, the messages name the port and the remedy.
func TestPortOfASilentProgram(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	id, err := NewIdentity([]byte("token"), "job")
	if err != nil {
		t.Fatal(err)
	}
	a := Open(t.Context(), Options{
		Discovery: Endpoint{Addr: ln.Addr().String()}, Identity: id, MasterPort: func() int { return 29500 },
		Host: HostOptions{JoinTimeout: time.Second},
	})
	defer a.Close()
	addr := ln.Addr().String()
	want := regexp.MustCompile("^" + addr + `: no host of the rendezvous was found in time: the port is in use by a program that is not golaunch, or is stopped ` +
		`\(it accepted the connection but did not answer within [\d.]+m?s\): end it, or choose another port with --rdzv-endpoint HOST:PORT$`)
	if o := nextOrder(t, a); !want.MatchString(fmt.Sprint(o.Err)) {
		t.Errorf("order %+v, want %q", o, want)
	}
}

func TestJobEndsWithItsHost(t *testing.T) {
	port, _ := testkit.Port(t)
	d := Endpoint{Addr: fmt.Sprintf("localhost:%d", port)}
	agents := []*Agent{openAgent(t, "a", d, Limits{MinNodes: 2, MaxNodes: 3})}
	// The second agent finds the first one's listener.
	for agents[0].current() == nil {
		time.Sleep(time.Millisecond)
	}
	for _, name := range []string{"b", "c"} {
		agents = append(agents, openAgent(t, name, d, Limits{MinNodes: 2, MaxNodes: 3}))
	}
	for _, a := range agents {
		if r := awaitRound(t, a); r.Nodes != 3 {
			t.Errorf("round %+v", r)
		}
	}
	if err := agents[0].Close(); err != nil {
		t.Error(err)
	}
	for _, a := range agents[1:] {
		o := nextOrder(t, a)
		for ; o.Stop != nil; o = nextOrder(t, a) { // the first may be the host's
			a.Ended(roundOf(a.current()), false, nil)
		}
		if !errors.Is(o.Err, ErrHostLost) {
			t.Errorf("order %+v", o)
		}
	}
}

// elections returns a function that opens an election in a cluster, by a process of golaunch-etcd.
func elections(t *testing.T, c *etcdtest.Cluster, ttl time.Duration) func(context.Context) (election.Election, error) {
	t.Setenv("PATH", testkit.Build(t, "cmd/golaunch-etcd")+":"+os.Getenv("PATH"))
	return func(ctx context.Context) (election.Election, error) {
		return election.Start(ctx, election.Options{Endpoints: c.Endpoints, Name: "job", TTL: ttl})
	}
}

// A host whose own agent leaves tells the other agents why, and ends when they know. One of them goes on hosting,
// at once, however long etcd would remember the host.
func TestHostResigns(t *testing.T) {
	c := etcdtest.Start(t, 1)
	open := elections(t, c, time.Minute)
	var agents []*Agent
	for i := range 3 {
		agents = append(agents, openAgent(t, fmt.Sprint("node", i), &Etcd{Open: open, Addr: "127.0.0.1"}, Limits{MinNodes: 2, MaxNodes: 3}))
	}
	host := 0
	for i, a := range agents {
		if awaitRound(t, a); a.current().local {
			host = i
		}
	}
	agents[host].Leave("no reaper", true)
	if o := nextOrder(t, agents[host]); o.End == nil {
		t.Errorf("order %+v, want the end", o)
	}
	agents = append(agents[:host], agents[host+1:]...)
	for _, a := range agents {
		if o := nextOrder(t, a); o.Stop == nil || !strings.Contains(o.Stop.Reason, fmt.Sprintf(" is lost: node%d left: no reaper", host)) {
			t.Errorf("order %+v, want a stop", o)
		}
		a.Ended(roundOf(a.current()), false, nil)
	}
	for _, a := range agents {
		if r := awaitRound(t, a); r.Number != 1 || r.Nodes != 2 || r.Restarts != 0 {
			t.Errorf("round %+v", r)
		}
	}

	// Too few are left now: the agents stop first, and then the job ends by that cause.
	if host = 0; agents[1].current().local {
		host = 1
	}
	agents[host].Leave("no memory", true)
	other := agents[1-host]
	if o := nextOrder(t, other); o.Stop == nil {
		t.Errorf("order %+v, want a stop", o)
	}
	effect := workerFailure(0, time.Now().Add(time.Second))
	other.Failed(effect)
	other.Ended(roundOf(other.current()), false, []failure.Failure{effect})
	if o := nextOrder(t, agents[host]); o.End == nil {
		t.Errorf("order %+v, want the end", o)
	}
	if o := nextOrder(t, other); o.End == nil || len(o.End.Failures) != 2 || o.End.Failures[0].Why != "left: no memory" {
		t.Errorf("order %+v, want the end with both failures", o)
	}
}
