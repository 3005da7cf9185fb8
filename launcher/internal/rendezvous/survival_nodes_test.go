package rendezvous

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goddp/goddp/internal/coordinator"
	"github.com/goddp/goddp/internal/handshake"
	"github.com/goddp/goddp/internal/store"
	"github.com/goddp/goddp/internal/testkit"
)

// member is a worker of a round that survives lost workers.
type member struct {
	*coordinator.Client
	number, epoch int
}

// enterAll has the members enter the next epoch, and returns its order. A member whose epoch is -1 was not in any.
func enterAll(t *testing.T, r *Round, members ...*member) (order coordinator.Order) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Soon)
	defer cancel()
	self := store.Member{Job: handshake.Job{ID: r.Credentials.JobID, World: r.WorldSize}, Rank: -1, Secret: r.Credentials.Secret}
	var wg sync.WaitGroup
	for i, m := range members {
		wg.Go(func() {
			kv, err := store.Dial(ctx, r.StoreAddr, &store.ClientOptions{Member: &self})
			if err != nil {
				t.Error(err)
				return
			}
			defer kv.Close()
			who := self
			who.Rank = m.number
			if m.Client, err = coordinator.Find(ctx, store.Prefix(kv, coordinator.LauncherPrefix), who, coordinator.ClientOptions{Size: r.WorldSize}); err != nil {
				t.Error(err)
				return
			}
			t.Cleanup(m.Client.Close)
			if m.epoch == 0 {
				_, err = m.Join(ctx, 1, nil, false, nil)
			}
			var o coordinator.Order
			if err == nil {
				o, err = m.Root().Enter(ctx, coordinator.Ready{Epoch: max(m.epoch, 0), Holds: m.epoch >= 0})
			}
			if err == nil && m.epoch != 0 {
				_, err = m.Join(ctx, o.Epoch, nil, false, nil)
			}
			if err != nil && !errors.Is(err, coordinator.ErrReleased) {
				t.Errorf("worker %d: %v", m.number, err)
			}
			if m.epoch = o.Epoch; i == 0 {
				order = o
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return order
}

// leave has members leave their epoch, which has failed.
func leave(t *testing.T, members ...*member) {
	for _, m := range members {
		<-m.Root().Settled()
		m.Depart(t.Context())
	}
}

// orderOf returns the next order of a session for which the function returns true. It drops those before.
func orderOf(t *testing.T, s *Session, is func(o *Order) bool) Order {
	t.Helper()
	for {
		o := next(t, s)
		if o.Stop != nil || o.End != nil || o.Err != nil {
			t.Fatalf("order %+v", o)
		}
		if is(&o) {
			return o
		}
	}
}

// A round of several nodes loses a worker, and then a node. Another node takes its place, and leaves as planned.
func TestSurvivingRound(t *testing.T) {
	const beat = 500 * time.Millisecond // an agent may stand still for a second
	j := newJobOf(t, HostOptions{Heartbeat: beat,
		Limits: Limits{MinNodes: 2, MaxNodes: 2, Survival: Survival{MinWorkers: 1, Replace: true, Silence: time.Minute}}})
	a := j.host.Join(NodeInfo{Host: "a", Workers: 1, Rank: -1}, 0)
	b := j.dial("b")
	round := nextRound(t, a)
	nextRound(t, b.Session)
	m := []*member{{number: 0}, {number: 1}, {number: 2}}
	enterAll(t, round, m...)
	isEpoch := func(number int) func(*Order) bool {
		return func(o *Order) bool { return o.Members != nil && o.Members.Number == number }
	}
	isNotice := func(text string) func(*Order) bool {
		return func(o *Order) bool { return strings.Contains(o.Notice, text) }
	}
	for _, s := range []*Session{a, b.Session} {
		orderOf(t, s, isEpoch(1))
	}

	m[1].Client.Close()
	if o := orderOf(t, b.Session, func(o *Order) bool { return o.Kill != nil }); o.Kill.Worker != 1 {
		t.Errorf("order %+v, want that worker 1 is killed", o.Kill)
	}
	b.Exited(Exit{Rank: 1, Worker: 1, How: "was killed"})
	orderOf(t, a, isNotice("worker 1 of b was killed"))
	if o := next(t, b.Session); o.Verdict == nil || !o.Verdict.GoesOn || !o.Verdict.IsReplaced {
		t.Errorf("order %+v, want that the others go on", o)
	}
	if o := next(t, b.Session); o.Start == nil || *o.Start != (StartOrder{0, 3, 1, 1, 1}) {
		t.Errorf("order %+v, want the start of worker 3", o.Start)
	}
	leave(t, m[0], m[2])
	enterAll(t, round, m[0], m[2])

	lost := time.Now()
	b.Close()
	m[2].Client.Close()
	orderOf(t, a, isNotice("node 1 (b) lost: its agent ended; its workers are dead for certain in "))
	d := j.dial("d")
	r := nextRound(t, d.Session)
	want := []*StartOrder{{0, 4, 1, 3, 1}, {0, 5, 2, 2, 1}}
	if r.Node != 1 || r.FirstRank != 1 || len(r.Starts) != 2 || *r.Starts[0] != *want[0] || *r.Starts[1] != *want[1] {
		t.Errorf("the new node has %+v", r)
	}
	orderOf(t, a, isNotice("node 1 (d) joined, and starts 2 workers"))
	leave(t, m[0])
	joined := []*member{m[0], {number: 4, epoch: -1}, {number: 5, epoch: -1}}
	if o := enterAll(t, round, joined...); !slices.Equal(o.Workers, []int{0, 4, 5}) || time.Since(lost) < 2*missedBeats*beat {
		t.Errorf("the epoch %+v began after %v, want workers 0, 4 and 5 after the lease", o, time.Since(lost))
	}
	orderOf(t, d.Session, isEpoch(3))

	d.AskToLeave("SIGTERM")
	if o := next(t, d.Session); o.Leave == nil || !o.Leave.IsDrained {
		t.Errorf("order %+v, want that the others go on", o)
	}
	leave(t, joined...)
	if o := enterAll(t, round, joined...); !slices.Equal(o.Workers, []int{0}) {
		t.Errorf("the epoch after the leave is %+v", o)
	}
	for i, worker := range []int{4, 5} {
		d.Exited(Exit{Rank: 1 + i, Worker: worker, How: "exited with code 0", Done: true})
	}
	d.Close()
	orderOf(t, a, isNotice("node 1 (d) left: SIGTERM"))
	a.AskToLeave("SIGTERM")
	if o := next(t, a); o.Leave == nil || o.Leave.IsDrained {
		t.Errorf("order %+v, want that all stop", o)
	}
}
