package election

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// cluster is an etcd cluster of real processes on this machine.
type cluster struct {
	t         *testing.T
	dir       string
	peers     []string
	endpoints []string
	members   []*exec.Cmd
}

func freePort(t *testing.T) int {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().(*net.TCPAddr).Port
}

func startCluster(t *testing.T, n int) *cluster {
	t.Helper()
	if _, err := exec.LookPath("etcd"); err != nil {
		t.Skip("there is no etcd: apt-get install etcd-server")
	}
	c := &cluster{t: t, dir: t.TempDir(), members: make([]*exec.Cmd, n)}
	for range n {
		c.endpoints = append(c.endpoints, fmt.Sprintf("http://127.0.0.1:%d", freePort(t)))
		c.peers = append(c.peers, fmt.Sprintf("http://127.0.0.1:%d", freePort(t)))
	}
	for i := range n {
		c.start(i)
	}
	t.Cleanup(func() {
		for i := range c.members {
			c.kill(i)
		}
	})
	return c
}

// start starts a member, or starts it again.
func (c *cluster) start(i int) {
	c.t.Helper()
	var initial []string
	for k, peer := range c.peers {
		initial = append(initial, fmt.Sprintf("m%d=%s", k, peer))
	}
	name := fmt.Sprintf("m%d", i)
	cmd := exec.Command("etcd", "--name", name, "--data-dir", filepath.Join(c.dir, name),
		"--listen-client-urls", c.endpoints[i], "--advertise-client-urls", c.endpoints[i],
		"--listen-peer-urls", c.peers[i], "--initial-advertise-peer-urls", c.peers[i],
		"--initial-cluster", strings.Join(initial, ","), "--initial-cluster-state", "new",
		"--heartbeat-interval", "50", "--election-timeout", "250", "--unsafe-no-fsync")
	log, err := os.OpenFile(filepath.Join(c.dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		c.t.Fatal(err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.members[i] = cmd
}

func (c *cluster) kill(i int) {
	if cmd := c.members[i]; cmd != nil {
		cmd.Process.Kill()
		cmd.Wait()
		c.members[i] = nil
	}
}

func (c *cluster) open(name string) *Election {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 30*time.Second)
	defer cancel()
	e, err := New(ctx, Options{Endpoints: c.endpoints, Name: name, TTL: time.Second})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { e.Close() })
	return e
}

func elect(t *testing.T, e *Election, addr, dead string) *Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	r, err := e.Elect(ctx, addr, dead)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestOneAgentIsElected(t *testing.T) {
	c := startCluster(t, 1)
	results := make(chan *Result, 8)
	for i := range 8 {
		e := c.open("job")
		go func() {
			r, err := e.Elect(t.Context(), fmt.Sprintf("host%d:1", i), "")
			if err != nil {
				t.Error(err)
			}
			results <- r
		}()
	}
	var term *Term
	addrs := map[string]int{}
	for range 8 {
		if r := <-results; r == nil {
			t.FailNow()
		} else if r.Term != nil {
			term = r.Term
			addrs[r.Term.addr]++
		} else {
			addrs[r.Addr]++
		}
	}
	if len(addrs) != 1 || term == nil {
		t.Fatalf("elected: %v", addrs)
	}
	// Another job has an election of its own.
	other := elect(t, c.open("other"), "host9:1", "")
	if other.Term == nil {
		t.Errorf("the other job elected %s", other.Addr)
	} else {
		other.Term.Resign()
	}
	if err := term.Resign(); err != nil {
		t.Error(err)
	}
}

func TestNextHostGoesOnWhereTheLastOneWas(t *testing.T) {
	c := startCluster(t, 1)
	first := elect(t, c.open("job"), "a:1", "").Term
	if first == nil || first.State() != (State{}) {
		t.Fatalf("first term %+v", first)
	}
	want := State{Epoch: 3, Restarts: 1}
	if err := first.Save(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	e := c.open("job")
	if r := elect(t, e, "b:1", ""); r.Addr != "a:1" {
		t.Errorf("elected %+v while a is", r)
	}
	// a is cut off from etcd: its lease is not kept alive.
	first.session.Orphan()
	second := elect(t, e, "b:1", "a:1").Term
	if second == nil || second.State() != want {
		t.Fatalf("second term %+v", second)
	}
	if err := first.Save(t.Context(), State{Epoch: 4}); !errors.Is(err, ErrOver) {
		t.Errorf("the first host saves: %v", err)
	}
	select {
	case <-first.Over():
	case <-time.After(10 * time.Second):
		t.Error("the first host does not learn that its term is over")
	}
	second.Resign()
}

func TestElectionSurvivesTheLossOfAMember(t *testing.T) {
	c := startCluster(t, 3)
	e := c.open("job")
	term := elect(t, e, "a:1", "").Term
	if term == nil {
		t.Fatal("not elected")
	}
	for i := range 3 {
		c.kill(i)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		if err := term.Save(ctx, State{Epoch: i}); err != nil {
			t.Fatalf("member %d is dead: %v", i, err)
		}
		cancel()
		c.start(i)
		if r := elect(t, e, "b:1", ""); r.Addr != "a:1" {
			t.Errorf("elected %+v", r)
		}
		ctx, cancel = context.WithTimeout(t.Context(), 30*time.Second)
		for { // until the member is back
			one, stop := context.WithTimeout(ctx, time.Second)
			_, err := e.client.Status(one, c.endpoints[i])
			if stop(); err == nil {
				break
			}
			if ctx.Err() != nil {
				t.Fatal(err)
			}
		}
		cancel()
	}
	term.Resign()
}
