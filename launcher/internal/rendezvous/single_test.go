package rendezvous

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/goddp/goddp/internal/handshake"
	"github.com/goddp/goddp/internal/store"
	"github.com/goddp/goddp/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m, nil) }

// openSingle opens the agent of a job of one node, whose store listens on a port; 0 means a free port.
func openSingle(t *testing.T, port, restarts int) *Agent {
	t.Helper()
	a := Open(t.Context(), Options{
		Discovery: SingleNode{}, Node: NodeInfo{Host: "a", Workers: 4, Rank: -1}, MasterPort: func() int { return 0 },
		Host: HostOptions{Limits: Limits{MinNodes: 1, MaxNodes: 1, MaxRestarts: restarts}, Port: port},
	})
	t.Cleanup(func() { a.Close() })
	return a
}

// Each round of a single node has its own store, even on the same port, and the store does not outlive the
// agent.
func TestSingleNodeHasAStoreForEachRound(t *testing.T) {
	port, _ := testkit.Port(t)
	a := openSingle(t, port, 2)
	for number := range 3 {
		round := awaitRound(t, a)
		if round.Number != number || round.Restarts != number || round.WorldSize != 4 || round.MasterAddr != "127.0.0.1" || round.MasterPort != port ||
			round.StoreAddr != fmt.Sprintf("127.0.0.1:%d", port) {
			t.Errorf("round %d is %+v", number, round)
		}
		kv, err := store.Dial(t.Context(), round.StoreAddr, &store.ClientOptions{Member: &store.Member{Job: handshake.Job{World: 4}}})
		if err != nil {
			t.Fatal(err)
		}
		if value, err := kv.Add(t.Context(), "key", 1); err != nil || value != 1 {
			t.Errorf("round %d: the store holds a value of an earlier round: %d, %v", number, value-1, err)
		}
		kv.Close()
		if number < 2 {
			a.Failed(workerFailure(0, time.Now()))
			if o := nextOrder(t, a); o.Stop == nil {
				t.Errorf("order %+v, want a stop", o)
			}
		}
		a.Ended(roundOf(a.current()), false, nil)
	}
	if o := nextOrder(t, a); o.End == nil || len(o.End.Failures) > 0 || o.End.Restarts != 2 {
		t.Errorf("order %+v, want the end after two restarts", o)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	if c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
		c.Close()
		t.Error("the store outlives its agent")
	}
}

// A port that another program has is an error that names the address.
func TestSingleNodeNamesTheAddressInUse(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	a := openSingle(t, ln.Addr().(*net.TCPAddr).Port, 0)
	if o := nextOrder(t, a); o.End == nil || !strings.Contains(o.End.Reason, ln.Addr().String()) {
		t.Errorf("order %+v, want an end that names %s", o, ln.Addr())
	}
}
