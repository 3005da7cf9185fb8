// Package coordinatortest gives ranks of one process a coordinator, for tests.
package coordinatortest

import (
	"context"
	"sync"
	"testing"

	"github.com/goddp/goddp/internal/coordinator"
)

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
