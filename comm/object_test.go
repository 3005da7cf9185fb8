package comm_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/goddp/goddp/comm"
)

// If a rank sends a wrong size for its object, the other ranks return an error before they
// allocate memory for the object. Here rank 1 sends an arbitrary number as its size.
func TestObjectSizesAreBounded(t *testing.T) {
	for _, size := range []int64{1<<30 + 1, 2e9, 1 << 60, -7} {
		groups, err := comm.Local(2, nil)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := comm.AllGatherInts(context.Background(), groups[1], []int64{size}); err != nil {
				t.Error(err)
			}
		})
		_, err = comm.AllGatherObject(context.Background(), groups[0], "object")
		if err == nil || !strings.Contains(err.Error(), "rank 1") {
			t.Errorf("a size of %d: %v", size, err)
		}
		wg.Wait()
		for _, g := range groups {
			g.Abort(nil)
			g.Close()
		}
	}
}
