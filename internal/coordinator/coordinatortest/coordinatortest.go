// Package coordinatortest gives ranks of one process a coordinator, for tests.
package coordinatortest

import (
	"context"
	"sync"
	"testing"

	"github.com/goddp/goddp/internal/coordinator"
	"github.com/goddp/goddp/store"
)

// OfProcess returns the group of all ranks, each of which is a process that calls it, by way of a
// store. Rank 0 hosts the coordinator until release.
func OfProcess(ctx context.Context, kv store.Store, rank, size int) (g *coordinator.Group, release func(), err error) {
	o := coordinator.ClientOptions{Size: size, Host: "rank 0", HostRank: 0}
	m := store.Member{Rank: rank}
	release = func() {}
	if rank == 0 {
		server, err := coordinator.Publish(ctx, kv, m, "", size, o)
		if err != nil {
			return nil, release, err
		}
		release = func() { server.Close() }
	}
	client, err := coordinator.Find(ctx, kv, m, o)
	if err != nil {
		return nil, release, err
	}
	closeServer := release
	release = func() {
		client.Depart(ctx)
		closeServer()
	}
	_, err = client.Join(ctx, 1, nil, false, nil)
	return client.Root(), release, err
}

// Ranks returns the group of all n ranks, as each of them has it. All have joined.
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
