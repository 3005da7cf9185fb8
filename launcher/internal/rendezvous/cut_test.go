package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/goddp/goddp/internal/election"
	"github.com/goddp/goddp/internal/testkit/etcdtest"
)

// network carries the connections of agents with hosts, and can cut them all off from each other. Etcd stays
// reachable.
type network struct {
	wg sync.WaitGroup

	mu        sync.Mutex
	isCut     bool
	conns     []net.Conn
	listeners map[string]net.Listener // by the address of the host to which their connections lead
}

func newNetwork(t *testing.T) *network {
	n := &network{listeners: map[string]net.Listener{}}
	t.Cleanup(func() {
		n.setCut(true)
		for _, ln := range n.listeners {
			ln.Close()
		}
		n.wg.Wait()
	})
	return n
}

func (n *network) setCut(isCut bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.isCut = isCut
	for _, c := range n.conns {
		c.Close()
	}
	n.conns = nil
}

// to returns the address in the network of the host at an address.
func (n *network) to(host string) (string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	ln := n.listeners[host]
	if ln == nil {
		var err error
		if ln, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return "", err
		}
		n.listeners[host] = ln
		n.wg.Go(func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				n.connect(c, host)
			}
		})
	}
	return ln.Addr().String(), nil
}

func (n *network) connect(c net.Conn, host string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	d, err := net.Dial("tcp", host)
	if err != nil || n.isCut {
		c.Close()
		if err == nil {
			d.Close()
		}
		return
	}
	n.conns = append(n.conns, c, d)
	for _, pair := range [][2]net.Conn{{c, d}, {d, c}} {
		n.wg.Go(func() {
			_, _ = io.Copy(pair[0], pair[1])
			c.Close()
			d.Close()
		})
	}
}

// cuttable is the discovery of hosts that this agent reaches through a network.
type cuttable struct {
	Discovery
	network *network
	host    string // the address of the latest one
}

func (c *cuttable) Find(ctx context.Context, dead string) (*Found, error) {
	if dead != "" && c.host != "" {
		dead = c.host // instead of its address in the network
	}
	found, err := c.Discovery.Find(ctx, dead)
	if err != nil || found.Role != nil {
		c.host = ""
		return found, err
	}
	c.host = found.Addr
	addr, err := c.network.to(found.Addr)
	return &Found{Addr: addr}, err
}

// openCuttable opens three agents whose host can be cut off from the others, and returns the host first. They
// have begun round 0.
func openCuttable(t *testing.T, minNodes int) (*network, []*Agent) {
	c, n := etcdtest.Start(t, 1), newNetwork(t)
	open := elections(t, c, 3*time.Second) // a pause of a second or two ends no term
	var agents []*Agent
	for i := range 3 {
		d := &cuttable{Discovery: &Etcd{Open: open, Addr: "127.0.0.1"}, network: n}
		agents = append(agents, openAgent(t, fmt.Sprint("node", i), d, Limits{MinNodes: minNodes, MaxNodes: 3}))
	}
	for i, a := range agents {
		if r := awaitRound(t, a); r.Number != 0 || r.Nodes != 3 {
			t.Errorf("round %+v", r)
		}
		if a.current().local {
			agents[0], agents[i] = agents[i], agents[0]
		}
	}
	return n, agents
}

// awaitStop waits until an agent is told to stop its workers, and says that they have ended.
func awaitStop(t *testing.T, a *Agent) {
	t.Helper()
	o := nextOrder(t, a)
	for o.Hold != "" {
		o = nextOrder(t, a)
	}
	if o.Stop == nil {
		t.Fatalf("order %+v, want a stop", o)
	}
	a.Ended(o.Stop.Epoch, false, nil)
}

// skipHolds returns the next order that is no reason to wait.
func skipHolds(t *testing.T, a *Agent) Order {
	t.Helper()
	for {
		if o := nextOrder(t, a); o.Hold == "" {
			return o
		}
	}
}

// A host that was cut off from the other nodes, and not from etcd, goes on without them, and takes them in when
// it can be reached again.
func TestAgentsReturnToAHostThatWasCutOff(t *testing.T) {
	n, agents := openCuttable(t, 1)
	n.setCut(true)
	for _, a := range agents {
		awaitStop(t, a)
	}
	if r := awaitRound(t, agents[0]); r.Number != 1 || r.Nodes != 1 {
		t.Errorf("round %+v, want round 1 of the host alone", r)
	}
	n.setCut(false)
	awaitStop(t, agents[0])
	for _, a := range agents {
		if o := skipHolds(t, a); o.Begin == nil || o.Begin.Number != 2 || o.Begin.Nodes != 3 {
			t.Errorf("order %+v, want round 2 of 3 nodes", o)
		}
	}
}

// A job that ends on a host that is cut off is not run again by the other nodes.
func TestJobOfAHostThatIsCutOffRunsOnce(t *testing.T) {
	n, agents := openCuttable(t, 1)
	n.setCut(true)
	for _, a := range agents {
		awaitStop(t, a)
	}
	awaitRound(t, agents[0])
	agents[0].Ended(1, false, nil) // with success
	if o := nextOrder(t, agents[0]); o.End == nil || o.End.Reason != "" || len(o.End.Failures) > 0 {
		t.Errorf("order %+v, want the end", o)
	}
	for _, a := range agents[1:] {
		if o := skipHolds(t, a); !errors.Is(o.Err, election.ErrJobEnded) {
			t.Errorf("order %+v, want %q", o, election.ErrJobEnded)
		}
	}
}

// A host that has too few nodes left, because it is cut off, leaves the job to the others.
func TestJobSurvivesThatItsHostIsCutOff(t *testing.T) {
	n, agents := openCuttable(t, 2)
	n.setCut(true)
	for _, a := range agents {
		awaitStop(t, a)
	}
	if o := nextOrder(t, agents[0]); o.End == nil || o.End.Reason != "too few nodes are left: 1 of at least 2" {
		t.Errorf("order %+v, want the end", o)
	}
	n.setCut(false) // one of the others hosts now
	for _, a := range agents[1:] {
		if o := skipHolds(t, a); o.Begin == nil || o.Begin.Number != 1 || o.Begin.Nodes != 2 {
			t.Errorf("order %+v, want round 1 of 2 nodes", o)
		}
	}
}

// An agent that the host gave up because it was silent is not refused if a lost host can be replaced: it looks for
// the host, and joins it again.
func TestSilentAgentCanReturnToAHostInEtcd(t *testing.T) {
	j := newJobOf(t, HostOptions{Limits: Limits{MinNodes: 1, MaxNodes: 2}, Heartbeat: 50 * time.Millisecond,
		Save: func(context.Context, election.State) error { return nil }})
	local := j.host.Join(NodeInfo{Host: "a", Workers: 1}, 0)
	silent := *j
	silent.opts.Heartbeat = time.Hour
	b := silent.dial("b")
	nextRound(t, local)
	nextRound(t, b.Session)
	if o := next(t, b.Session); !errors.As(o.Err, new(*HostLostError)) {
		t.Errorf("order %+v, want a lost host", o)
	}
}
