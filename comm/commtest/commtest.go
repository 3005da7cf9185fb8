// Package commtest runs a job's ranks within one test.
package commtest

import (
	"sync"
	"testing"

	"github.com/goddp/goddp/comm"
)

// OnRanks runs f on n ranks, goroutines of this process, and closes their
// groups. An error of f fails the test and aborts that rank's group, so that
// the others do not wait for it.
func OnRanks(t testing.TB, n int, opts *comm.Options, f func(pg *comm.ProcessGroup) error) {
	t.Helper()
	groups, err := comm.Local(n, opts)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for _, pg := range groups {
		wg.Go(func() {
			if err := f(pg); err != nil {
				t.Errorf("rank %d: %v", pg.Rank(), err)
				pg.Abort(err)
			}
		})
	}
	wg.Wait()
	for _, pg := range groups {
		if err := pg.Close(); err != nil {
			t.Errorf("rank %d: Close: %v", pg.Rank(), err)
		}
	}
}
