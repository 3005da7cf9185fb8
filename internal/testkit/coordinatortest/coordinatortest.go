// Package coordinatortest starts coordinators for tests.
package coordinatortest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/goddp/goddp/internal/coordinator"
	"github.com/goddp/goddp/internal/store"
)

// leaveTime is the longest time for which rank 0 waits for the other ranks to leave.
const leaveTime = 10 * time.Second

// OfProcess joins a job and returns the group of all its ranks. Each rank is a process, and calls
// OfProcess. The ranks find each other through the store. Rank 0 hosts the coordinator until rank 0
// calls release.
func OfProcess(ctx context.Context, kv store.Store, rank, size int) (g *coordinator.Group, release func(), err error) {
	o := coordinator.ClientOptions{Size: size, Host: "rank 0", HostRank: 0}
	m := store.Member{Rank: rank}
	stop := func() error { return nil }
	var client *coordinator.Client
	if rank == 0 {
		var server *coordinator.Server
		if server, err = coordinator.Publish(ctx, kv, m, "", size, o); err == nil {
			stop = server.Close
			client, err = server.Local(rank, o)
		}
	} else {
		client, err = coordinator.Find(ctx, kv, m, o)
	}
	if err != nil {
		return nil, func() { stop() }, err
	}
	release = func() {
		leaving, cancel := context.WithTimeout(ctx, leaveTime)
		defer cancel()
		client.Depart(leaving)
		stop()
	}
	_, err = client.Join(ctx, 1, nil, false, nil)
	return client.Root(), release, err
}

// Ranks starts a job of n ranks that all run in this process. It returns the group of all ranks as each
// rank sees it, by rank. All ranks have joined.
func Ranks(t testing.TB, n int) []*coordinator.Group {
	t.Helper()
	server := coordinator.NewServer(n, coordinator.Options{})
	groups := make([]*coordinator.Group, n)
	var wg sync.WaitGroup
	for r := range n {
		client, err := server.Local(r, coordinator.ClientOptions{Size: n, Host: "the test", HostRank: -1})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(client.Close)
		groups[r] = client.Root()
		wg.Go(func() {
			if _, err := client.Join(context.Background(), 1, nil, false, nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	t.Cleanup(func() { server.Close() })
	return groups
}
