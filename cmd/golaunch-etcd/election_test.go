package main

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/goddp/goddp/internal/election"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/etcdtest"
)

// openSlow opens an election with a TTL of a minute, so that a process that stands still for a few seconds keeps its term.
func openSlow(t *testing.T, c *etcdtest.Cluster, name string) *etcdElection {
	t.Helper()
	return openTTL(t, c, name, time.Minute)
}

func openTTL(t *testing.T, c *etcdtest.Cluster, name string, ttl time.Duration) *etcdElection {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	e, err := open(ctx, election.Options{Endpoints: c.Endpoints, Name: name, TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e.(*etcdElection)
}

// result is the outcome of an election: the address of the elected agent, or a term.
type result struct {
	Addr string
	Term *term
}

func elect(t *testing.T, e *etcdElection, addr, dead string) *result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	r, err := e.electIn(ctx, addr, dead)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (e *etcdElection) electIn(ctx context.Context, addr, dead string) (*result, error) {
	host, elected, err := e.Elect(ctx, addr, dead)
	mine, _ := elected.(*term)
	return &result{host, mine}, err
}

// expire ends an agent's lease at once, as etcd does if the agent has not renewed it for the TTL.
func expire(t *testing.T, of *term) {
	t.Helper()
	of.session.Orphan()
	if _, err := of.election.client.Revoke(t.Context(), of.session.Lease()); err != nil {
		t.Fatal(err)
	}
}

func TestOneAgentIsElected(t *testing.T) {
	testkit.Long(t)
	c := etcdtest.Start(t, 1)
	results := make(chan *result, 8)
	for i := range 8 {
		e := openSlow(t, c, "job")
		go func() {
			r, err := e.electIn(t.Context(), fmt.Sprintf("host%d:1", i), "")
			if err != nil {
				t.Error(err)
			}
			results <- r
		}()
	}
	var mine *term
	addrs := map[string]int{}
	for range 8 {
		if r := <-results; r == nil {
			t.FailNow()
		} else if r.Term != nil {
			mine = r.Term
			addrs[r.Term.addr]++
		} else {
			addrs[r.Addr]++
		}
	}
	if len(addrs) != 1 || mine == nil {
		t.Fatalf("elected: %v", addrs)
	}
	// Another job has another election.
	other := elect(t, openSlow(t, c, "other"), "host9:1", "")
	if other.Term == nil {
		t.Errorf("the other job elected %s", other.Addr)
	} else {
		other.Term.Resign(t.Context(), true)
	}
	if err := mine.Resign(t.Context(), true); err != nil {
		t.Error(err)
	}
}

func TestNextHostGoesOnWhereTheLastOneWas(t *testing.T) {
	testkit.Long(t)
	c := etcdtest.Start(t, 1)
	first := elect(t, openSlow(t, c, "job"), "a:1", "").Term
	if first == nil || first.State() != (election.State{}) {
		t.Fatalf("first term %+v", first)
	}
	want := election.State{Epoch: 3, Restarts: 1}
	if err := first.Save(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	e := openSlow(t, c, "job")
	if r := elect(t, e, "b:1", ""); r.Addr != "a:1" {
		t.Errorf("elected %+v while a is", r)
	}
	expire(t, first) // a is cut off from etcd
	first.memory.Orphan()
	second := elect(t, e, "b:1", "a:1").Term
	if second == nil || second.State() != want {
		t.Fatalf("second term %+v", second)
	}
	if err := first.Save(t.Context(), election.State{Epoch: 4}); !errors.Is(err, election.ErrOver) {
		t.Errorf("the first host saves: %v", err)
	}
	select {
	case <-first.Over():
	case <-time.After(10 * time.Second):
		t.Error("the first host does not learn that its term is over")
	}
	// An agent that leaves keeps the state for the next host. The end of the job deletes it.
	second.Resign(t.Context(), false)
	third := elect(t, e, "c:1", "").Term
	if third == nil || third.State() != want {
		t.Fatalf("third term %+v", third)
	}
	if err := third.Resign(t.Context(), true); err != nil {
		t.Error(err)
	}
	fourth := elect(t, openSlow(t, c, "job"), "d:1", "").Term // of another job
	if fourth == nil || fourth.State() != (election.State{}) {
		t.Fatalf("after the end of the job, a term begins with %+v", fourth)
	}
	fourth.Resign(t.Context(), true)
}

// A host that an agent has lost, and that lives, was cut off from this agent alone. The agent finds it again.
func TestHostThatLivesIsFoundAgain(t *testing.T) {
	testkit.Long(t)
	c := etcdtest.Start(t, 1)
	term := elect(t, openSlow(t, c, "job"), "a:1", "").Term
	if term == nil {
		t.Fatal("not elected")
	}
	if r := elect(t, openTTL(t, c, "job", time.Second), "b:1", "a:1"); r.Addr != "a:1" {
		t.Errorf("elected %+v, want a", r)
	}
	term.Resign(t.Context(), true)
}

// An agent that took part in a job that has ended is not elected, so it does not run the job again. An agent
// that has just started is, for another job.
func TestEndedJobIsNotRunAgain(t *testing.T) {
	testkit.Long(t)
	c := etcdtest.Start(t, 1)
	host := elect(t, openSlow(t, c, "job"), "a:1", "").Term
	if host == nil {
		t.Fatal("not elected")
	}
	late, waits := openSlow(t, c, "job"), openSlow(t, c, "job")
	for _, e := range []*etcdElection{late, waits} {
		if r := elect(t, e, "b:1", ""); r.Addr != "a:1" {
			t.Errorf("elected %+v, want a", r)
		}
	}
	waited := make(chan error, 1)
	go func() {
		_, err := waits.electIn(t.Context(), "b:1", "a:1")
		waited <- err
	}()
	if err := host.Resign(t.Context(), true); err != nil {
		t.Error(err)
	}
	select {
	case err := <-waited:
		if !errors.Is(err, election.ErrJobEnded) {
			t.Errorf("an agent that waited: %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("an agent still waits")
	}
	if _, err := late.electIn(t.Context(), "c:1", ""); !errors.Is(err, election.ErrJobEnded) {
		t.Errorf("an agent that did not reach the host: %v", err)
	}
	restarted := openSlow(t, c, "job") // its golaunch-etcd was killed
	if _, err := restarted.electIn(t.Context(), "d:1", "a:1"); !errors.Is(err, election.ErrJobEnded) {
		t.Errorf("an agent that lost the host: %v", err)
	}
	other := elect(t, openSlow(t, c, "job"), "e:1", "").Term
	if other == nil || other.State() != (election.State{}) {
		t.Fatalf("an agent of the next job: %+v", other)
	}
	if r := elect(t, openSlow(t, c, "job"), "f:1", "x:1"); r.Addr != "e:1" {
		t.Errorf("an agent of the next job that lost a host: %+v", r)
	}
	// A job does not end with a host that is not elected any more.
	expire(t, other)
	next := elect(t, restarted, "g:1", "e:1").Term
	if next == nil {
		t.Fatal("not elected")
	}
	if err := other.Resign(t.Context(), true); !errors.Is(err, election.ErrOver) {
		t.Errorf("the former host ends the job: %v", err)
	}
	if err := next.Save(t.Context(), election.State{Epoch: 1}); err != nil {
		t.Error(err)
	}
	next.Resign(t.Context(), true)
}

func TestElectionSurvivesTheLossOfAMember(t *testing.T) {
	testkit.Long(t)
	c := etcdtest.Start(t, 3)
	e := openTTL(t, c, "job", 10*time.Second) // a new leader may take seconds
	term := elect(t, e, "a:1", "").Term
	if term == nil {
		t.Fatal("not elected")
	}
	c.Kill(0)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := term.Save(ctx, election.State{Epoch: 1}); err != nil {
		t.Error(err)
	}
	if r := elect(t, e, "b:1", ""); r.Addr != "a:1" {
		t.Errorf("elected %+v", r)
	}
	term.Resign(t.Context(), true)
}
