// Package commtest runs the ranks of a job within a test.
//
// [OnRanks] has them as goroutines of the test's process, where the race detector
// sees across them. The same test then runs on real processes, without a change:
// [Processes], called by a test of the package, starts the test binary once for each
// rank, and within such a job every process runs its own rank's part of each OnRanks.
// A package needs one such test:
//
//	func TestOnProcesses(t *testing.T) {
//		for _, n := range []int{2, 4} {
//			commtest.Processes(t, n, "GODDP_DEVICE=cpu")
//		}
//	}
//
// A test that has to be one process, because its ranks share memory or a fake clock,
// says so by [OnGoroutines], and jobs leave it out; so they do OnRanks for another
// number of ranks than theirs, so that a test does best to run on those of [Sizes]. The
// processes of a job must come to the same calls of OnRanks in the same order: no
// subtests in the order of a map.
//
// A job may also be started by hand, on other devices, from a binary that was built
// elsewhere:
//
//	GODDP_TEST_JOB=1 GODDP_DEVICE=cuda golaunch --nproc-per-node 2 ddp.test -test.run TestUnevenInputs
package commtest

import (
	"sync"
	"testing"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/store"
)

// OnRanks runs f on n ranks, goroutines of this process, or in a job of n processes
// on its own rank alone, and closes their groups. An error of f fails the test and
// aborts that rank's group, so that the others do not wait for it. In a job of
// another size it skips the test, but for one rank, which any process can be.
func OnRanks(t testing.TB, n int, opts *comm.Options, f func(pg *comm.ProcessGroup) error) {
	t.Helper()
	if InJob() && n > 1 {
		onProcess(t, n, opts, f)
		return
	}
	onGoroutines(t, n, opts, f)
}

// OnGoroutines is OnRanks for an f that needs all ranks in one process. In a job it
// skips the test.
func OnGoroutines(t testing.TB, n int, opts *comm.Options, f func(pg *comm.ProcessGroup) error) {
	t.Helper()
	OutsideJobs(t)
	onGoroutines(t, n, opts, f)
}

func onGoroutines(t testing.TB, n int, opts *comm.Options, f func(pg *comm.ProcessGroup) error) {
	t.Helper()
	groups, err := comm.Local(n, opts)
	if err != nil {
		t.Fatal(err)
	}
	run(t, groups, f)
}

// OnDevices is OnGoroutines on devices of the test's own, one for each rank. A
// failure never ends the test's process.
func OnDevices(t testing.TB, devices []device.Device, opts *comm.Options, f func(pg *comm.ProcessGroup) error) {
	t.Helper()
	OutsideJobs(t)
	t.Setenv("GODDP_FLIGHT_DIR", t.TempDir()) // a failed rank writes its record there
	o := surviving(opts)
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

// surviving are options with which a failure does not end the process.
func surviving(opts *comm.Options) (o comm.Options) {
	if opts != nil {
		o = *opts
	}
	if o.ErrorMode == comm.DefaultErrorMode {
		o.ErrorMode = comm.CleanUpOnly
	}
	return o
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
