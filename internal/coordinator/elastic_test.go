package coordinator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
)

// elasticServer is the coordinator of an elastic job that starts with some workers. Its kills arrive on the channel.
func elasticServer(t *testing.T, workers, min int, o Options) (s *Server, kills chan int) {
	kills = make(chan int, 100)
	o.Key, o.HasSecret = []byte("key"), true
	o.Elastic = &Elastic{Min: min, Kill: func(worker int, why string) { kills <- worker }, Log: func(Order) {}}
	s, err := Listen("127.0.0.1:0", workers, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, kills
}

// enter connects a worker, and enters and joins the next epoch. For the first epoch it first joins the session.
func enter(ctx context.Context, s *Server, worker int, r Ready) (*Client, Order, error) {
	o := s.opts
	o.Elastic = nil
	c, err := Dial(ctx, s.Addr().String(), worker, ClientOptions{Options: o, Size: s.size, Host: "a test", HostRank: -1})
	if err != nil {
		return nil, Order{}, err
	}
	isFirst := worker < s.size && r.Epoch == 0
	if isFirst {
		_, err = c.Join(ctx, 1, nil, false, nil)
	}
	var order Order
	if err == nil {
		order, err = c.Root().Enter(ctx, r)
	}
	if err == nil && !isFirst {
		_, err = c.Join(ctx, order.Epoch, nil, false, nil)
	}
	if err != nil {
		c.Close()
	}
	return c, order, err
}

// A worker's connection ends: it is killed. The others leave the broken epoch, and begin the next one when it is
// gone. A worker that joins has them leave at a boundary. All have the ranks of the new epoch.
func TestEpochs(t *testing.T) {
	s, kills := elasticServer(t, 3, 1, Options{})
	clients, orders := make([]*Client, 4), make([]Order, 4)
	enterAll := func(workers []int, ready func(worker int) Ready) {
		t.Helper()
		var wg sync.WaitGroup
		for _, w := range workers {
			wg.Go(func() {
				var err error
				if clients[w], orders[w], err = enter(t.Context(), s, w, ready(w)); err != nil {
					t.Errorf("worker %d: %v", w, err)
				}
			})
		}
		wg.Wait()
		for _, w := range workers {
			if rank := slices.Index(orders[w].Workers, w); rank != clients[w].Root().Rank() || len(clients[w].Root().Members) != len(workers) {
				t.Fatalf("worker %d is rank %d of %d, its order is %+v", w, clients[w].Root().Rank(), len(clients[w].Root().Members), orders[w])
			}
		}
	}
	for w := range 3 {
		s.Started(w)
	}
	enterAll([]int{0, 1, 2}, func(int) Ready { return Ready{Holds: true} })

	clients[1].Close()
	if w := <-kills; w != 1 {
		t.Fatalf("worker %d was killed, want 1", w)
	}
	for _, w := range []int{0, 2} {
		<-clients[w].Root().Settled()
		if f := clients[w].Root().Failure(); f.Kind != Lost || f.Ranks[0] != 1 {
			t.Fatalf("the epoch broke by %v", f)
		}
		clients[w].Depart(t.Context())
	}
	if !s.Gone(1, "signal 9", false) {
		t.Fatal("the job does not go on with two workers")
	}
	enterAll([]int{0, 2}, func(w int) Ready { return Ready{Epoch: 1, Steps: 5 + w, Holds: true} })
	if o := orders[0]; o.Epoch != 2 || o.Steps != 7 || o.Source != 1 {
		t.Fatalf("the second epoch is %+v", o)
	}

	s.Started(3)
	var joiner sync.WaitGroup
	joiner.Go(func() {
		var err error
		if clients[3], orders[3], err = enter(t.Context(), s, 3, Ready{}); err != nil {
			t.Error(err)
		}
	})
	for _, w := range []int{0, 2} {
		<-clients[w].Root().Settled()
		if f := clients[w].Root().Failure(); f.Kind != Changed {
			t.Fatalf("the epoch that a worker joins ended by %v", f)
		}
		clients[w].Depart(t.Context())
	}
	s.Drain(0)
	var released sync.WaitGroup
	released.Go(func() {
		if _, _, err := enter(t.Context(), s, 0, Ready{Epoch: 2, Steps: 8, Holds: true}); !errors.Is(err, ErrReleased) {
			t.Errorf("a worker that shall leave got %v", err)
		}
	})
	released.Go(func() {
		var err error
		if clients[2], orders[2], err = enter(t.Context(), s, 2, Ready{Epoch: 2, Steps: 8, Holds: true}); err != nil {
			t.Error(err)
		}
	})
	released.Wait()
	joiner.Wait()
	if want := fmt.Sprintf("%+v", Order{Begin, []int{2, 3}, 3, 8, 0, []int{1}}); fmt.Sprintf("%+v", orders[3]) != want || t.Failed() {
		t.Fatalf("the third epoch is %+v, want %s", orders[3], want)
	}
	for _, w := range []int{2, 3} {
		clients[w].Close()
	}
}

// A member that hangs, so that another one waits for it at the door, is killed.
func TestHungWorkerIsKilled(t *testing.T) {
	s, kills := elasticServer(t, 2, 1, Options{Interval: 10 * time.Millisecond})
	clients := make([]*Client, 2)
	var wg sync.WaitGroup
	for w := range 2 {
		s.Started(w)
		wg.Go(func() {
			var err error
			if clients[w], _, err = enter(t.Context(), s, w, Ready{Holds: true}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	clients[0].Depart(t.Context())
	wg.Go(func() {
		c, o, err := enter(t.Context(), s, 0, Ready{1, 0, true, 50 * time.Millisecond})
		if err != nil || len(o.Workers) != 1 {
			t.Errorf("the next epoch is %+v, %v", o, err)
		}
		c.Close()
	})
	if w := <-kills; w != 1 {
		t.Fatalf("worker %d was killed, want 1", w)
	}
	clients[1].Close()
	s.Gone(1, "signal 9", false)
	wg.Wait()
}

// A worker that hangs while it starts, so that the members wait for it because they are too few, is killed.
func TestHungReplacementIsKilled(t *testing.T) {
	s, kills := elasticServer(t, 2, 2, Options{Interval: 10 * time.Millisecond})
	clients := make([]*Client, 2)
	var wg sync.WaitGroup
	for w := range 2 {
		s.Started(w)
		wg.Go(func() {
			var err error
			if clients[w], _, err = enter(t.Context(), s, w, Ready{Holds: true}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	clients[1].Close()
	if w := <-kills; w != 1 {
		t.Fatalf("worker %d was killed, want 1", w)
	}
	s.Started(2)
	s.Gone(1, "signal 9", false)
	clients[0].Depart(t.Context())
	ctx, cancel := context.WithCancel(t.Context())
	wg.Go(func() {
		if _, _, err := enter(ctx, s, 0, Ready{1, 0, true, 50 * time.Millisecond}); !errors.Is(err, context.Canceled) {
			t.Errorf("the next epoch has begun, %v", err)
		}
	})
	if w := <-kills; w != 2 {
		t.Errorf("worker %d was killed, want 2", w)
	}
	cancel()
	wg.Wait()
}

// A worker that has left a broken epoch and does not come to the door is killed.
func TestAbsentWorkerIsKilled(t *testing.T) {
	s, kills := elasticServer(t, 2, 1, Options{Interval: 10 * time.Millisecond, Silence: 50 * time.Millisecond})
	clients := make([]*Client, 2)
	var wg sync.WaitGroup
	for w := range 2 {
		s.Started(w)
		wg.Go(func() {
			var err error
			if clients[w], _, err = enter(t.Context(), s, w, Ready{Holds: true}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	clients[1].Close()
	<-clients[0].Root().Settled()
	clients[0].Depart(t.Context())
	for _, want := range []int{1, 0} {
		if w := <-kills; w != want {
			t.Fatalf("worker %d was killed, want %d", w, want)
		}
	}
}
