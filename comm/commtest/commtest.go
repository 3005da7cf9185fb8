// Package commtest runs a job's ranks within one test.
package commtest

import (
	"sync"
	"testing"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/store"
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
	run(t, groups, f)
}

// OnDevices is OnRanks on devices of the test's own, one for each rank. A
// failure never ends the test's process.
func OnDevices(t testing.TB, devices []device.Device, opts *comm.Options, f func(pg *comm.ProcessGroup) error) {
	t.Helper()
	var o comm.Options
	if opts != nil {
		o = *opts
	}
	if o.ErrorMode == comm.DefaultErrorMode {
		o.ErrorMode = comm.CleanUpOnly
	}
	kv := store.NewLocal()
	defer kv.Close()
	groups := make([]*comm.ProcessGroup, len(devices))
	var wg sync.WaitGroup
	for rank, dev := range devices {
		o := o
		o.World, o.Store, o.Device = &comm.World{Rank: rank, Size: len(devices), LocalRank: rank}, kv.Handle(), dev
		wg.Go(func() {
			var err error
			if groups[rank], err = comm.Init(t.Context(), &o); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if !t.Failed() {
		run(t, groups, f)
	}
}

func run(t testing.TB, groups []*comm.ProcessGroup, f func(pg *comm.ProcessGroup) error) {
	t.Helper()
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
	for _, pg := range groups { // side by side: a rank may wait for the others
		wg.Go(func() {
			if err := pg.Close(); err != nil {
				t.Errorf("rank %d: Close: %v", pg.Rank(), err)
			}
		})
	}
	wg.Wait()
}
