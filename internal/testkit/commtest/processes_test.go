package commtest

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/internal/testkit"
)

// hostsVar is an environment variable that gives every process of a job a host name of its own.
const hostsVar = "GODDP_TEST_HOSTS"

func TestMain(m *testing.M) {
	if os.Getenv(hostsVar) != "" {
		os.Setenv("GODDP_HOST_ID", "host of rank "+os.Getenv("RANK"))
	}
	testkit.Main(m, nil)
}

// In a job the ranks communicate by shared memory or, if they have host names of their own, by TCP.
func TestOnProcesses(t *testing.T) {
	Processes(t, 2, "GODDP_DEVICE=cpu", hostsVar+"=1")
	Processes(t, 4, "GODDP_DEVICE=cpu")
}

func TestGPUOnProcesses(t *testing.T) { ProcessesOnGPUs(t, 2) }

// failVar is an environment variable that makes TestSum fail on rank 1.
const failVar = "GODDP_TEST_FAIL"

// Each rank runs its part once, as a goroutine or as a process.
func TestSum(t *testing.T) {
	for _, n := range Sizes(t, 2, 4) {
		parts := make(chan int, n)
		OnRanks(t, n, nil, func(pg *comm.ProcessGroup) error {
			parts <- pg.Rank()
			x := autograd.FromSlice(pg.Device(), []float64{float64(1 + pg.Rank())})
			if err := pg.AllReduce(x.Tensor(), comm.Sum).Wait(t.Context()); err != nil {
				return err
			}
			if pg.Rank() == 1 && os.Getenv(failVar) != "" {
				return errors.New("told to fail")
			}
			if got, want := x.Item(), float64(n*(n+1)/2); got != want || pg.Size() != n {
				return fmt.Errorf("the sum over %d ranks is %v, want %v over %d", pg.Size(), got, want, n)
			}
			return nil
		})
		if len(parts) != Here(n) {
			t.Errorf("%d parts ran in this process, want %d", len(parts), Here(n))
		}
	}
}

// A job says which rank's part failed, and why. A job in which no part runs fails.
func TestJobsThatFail(t *testing.T) {
	OutsideJobs(t)
	testkit.Long(t)
	vars := []string{"GODDP_DEVICE=cpu", "GODDP_FLIGHT_DIR=" + t.TempDir()}
	_, said, err := job(t.Context(), 2, nil, append(vars, failVar+"=1"))
	if err == nil || !strings.Contains(said, "rank 1: told to fail") || !strings.Contains(said, "FAIL: TestSum") {
		t.Errorf("got %v\n%s", err, said)
	}
	// No test runs on a single process.
	if parts, _, err := job(t.Context(), 1, nil, vars); err == nil || parts != 0 {
		t.Errorf("%d parts ran: %v", parts, err)
	}
}

// The error of a MonitoredBarrier names the ranks that did not call it, in a group and in a
// subgroup. Both are usable afterwards.
func TestMonitoredBarrier(t *testing.T) {
	if !InJob() {
		testkit.Long(t) // it waits in real time; package comm has this test on a fake clock
	}
	for _, n := range Sizes(t, 2, 4) {
		OnRanks(t, n, nil, func(pg *comm.ProcessGroup) error {
			part, err := pg.Split(t.Context(), min(pg.Rank()/(n-1), 1), 0) // all ranks but the last
			if err != nil {
				return err
			}
			for _, g := range []*comm.ProcessGroup{pg, part} {
				missing := g.Size() - 1
				if g.Rank() != missing || missing == 0 {
					err := g.With(&comm.CallOptions{Timeout: time.Second}).MonitoredBarrier(t.Context())
					var late *comm.BarrierError
					if isLate := errors.As(err, &late); isLate != (missing > 0) || !isLate && err != nil {
						return fmt.Errorf("got %v", err)
					}
					if late != nil && fmt.Sprint(late.Missing) != fmt.Sprintf("[%d]", missing) {
						return fmt.Errorf("%v, want rank %d to be missing", err, missing)
					}
				}
				if err := errors.Join(g.Barrier().Wait(t.Context()), pg.Barrier().Wait(t.Context())); err != nil {
					return err
				}
			}
			return nil
		})
	}
}
