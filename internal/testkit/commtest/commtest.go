// Package commtest runs the ranks of a job within a test.
//
// [OnRanks] runs the ranks as goroutines of the test's process, so that the race detector sees
// accesses of all ranks. The same tests also run on real processes, without a change: a package
// has one test that calls [Processes], which starts the test binary once for each rank. In such a
// job, every process runs its own rank's part of each OnRanks.
//
//	func TestOnProcesses(t *testing.T) {
//		for _, n := range []int{2, 4} {
//			commtest.Processes(t, n, "GODDP_DEVICE=cpu")
//		}
//	}
//
// If the ranks of a test share memory or a fake clock, the test calls [OnGoroutines], which is
// skipped in jobs. OnRanks is also skipped in a job with another number of ranks, so tests should
// take their numbers of ranks from [Sizes]. All processes of a job must make the same calls of
// OnRanks in the same order, so a test must not run subtests in the order of a map.
//
// A job can also be started by hand, for example on other devices:
//
//	GODDP_TEST_JOB=1 GODDP_DEVICE=cuda golaunch --nproc-per-node 2 ddp.test -test.run TestUnevenInputs
package commtest

import (
	"sync"
	"testing"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/store"
)

// OnRanks runs f on n ranks and closes their groups. The ranks are goroutines of this process; in a
// job of n processes, OnRanks runs f on this process's rank alone. An error of f fails the test and
// aborts that rank's group, so that the other ranks do not wait. In a job of another size OnRanks
// skips the test, unless n is 1.
func OnRanks(t testing.TB, n int, opts *comm.Options, f func(pg *comm.ProcessGroup) error) {
	t.Helper()
	if InJob() && n > 1 {
		onProcess(t, n, opts, f)
		return
	}
	onGoroutines(t, n, opts, f)
}

// OnGoroutines is OnRanks with all ranks in one process. In a job it skips the test.
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

// OnDevices is OnGoroutines on the given devices, one for each rank. A failure of a call does not
// end the test's process.
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
		o.World, o.Store, o.Device = &comm.World{Rank: rank, Size: len(devices), LocalRank: rank}, kv, dev
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

// surviving returns opts with an error mode in which a failure does not end the process.
func surviving(opts *comm.Options) (o comm.Options) {
	if opts != nil {
		o = *opts
	}
	if o.ErrorMode == comm.DefaultErrorMode {
		o.ErrorMode = comm.CleanUpOnly
	}
	return o
}

// run runs f on the groups concurrently and closes them.
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
	for _, pg := range groups { // concurrently, because Close may wait for the other ranks
		wg.Go(func() {
			if err := pg.Close(); err != nil {
				t.Errorf("rank %d: Close: %v", pg.Rank(), err)
			}
		})
	}
	wg.Wait()
}
