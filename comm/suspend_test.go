//go:build unix

package comm_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/internal/testkit"
)

// In the test program suspended, ranks 0 and 2 wait for rank 1, in Init, in an AllReduce or in
// a MonitoredBarrier. GODDP_TEST_WAIT says where they wait: join, sum or barrier. Rank 1 joins
// them only when the file that GODDP_TEST_GO names exists. GODDP_TEST_TIMEOUT is the timeout of that wait. Each rank
// says so before it begins to wait.
func suspended(ctx context.Context) error {
	timeout, err := time.ParseDuration(os.Getenv("GODDP_TEST_TIMEOUT"))
	if err != nil {
		return err
	}
	rank, wait := os.Getenv("RANK"), os.Getenv("GODDP_TEST_WAIT")
	come := func() {
		fmt.Println("waiting")
		for rank == "1" {
			if _, err := os.Stat(os.Getenv("GODDP_TEST_GO")); err == nil {
				break
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	initTimeout := time.Minute // the start of the other processes may take long
	if wait == "join" {
		initTimeout = timeout
		come()
	}
	return joined(&comm.Options{Timeout: initTimeout}, func(ctx context.Context, pg *comm.ProcessGroup) error {
		pg = pg.With(&comm.CallOptions{Timeout: timeout})
		if wait != "join" {
			come()
		}
		if wait == "barrier" {
			if err := pg.MonitoredBarrier(ctx); err != nil {
				return err
			}
		}
		x := vec(float32(pg.Rank() + 1))
		if err := pg.AllReduce(x, comm.Sum).Wait(ctx); err != nil {
			return err
		}
		fmt.Printf("sum %v\n", vals(x)[0])
		return nil
	})(ctx)
}

// startSuspended starts three ranks of program suspended, and returns when all of them have
// begun to wait. The returned function `let` makes rank 1 join the other ranks.
func startSuspended(t *testing.T, wait string, timeout time.Duration) (ps []*testkit.Process, let func()) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "go")
	ps = startWorld(t, 3, "suspended", "GODDP_TEST_GO="+file, "GODDP_TEST_WAIT="+wait, "GODDP_TEST_TIMEOUT="+timeout.String())
	for _, p := range ps {
		p.Await("^waiting$", 1)
	}
	time.Sleep(200 * time.Millisecond) // so that the ranks wait for rank 1
	return ps, func() {
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// If a whole job is suspended for longer than its timeout, it then continues normally, whether
// its ranks wait in Init, in a collective or in a barrier.
func TestSuspendedJobContinues(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	for wait, timeout := range map[string]time.Duration{
		"join": 6 * time.Second, // in which the processes also start
		"sum":  4 * time.Second, "barrier": 4 * time.Second,
	} {
		t.Run(wait, func(t *testing.T) {
			t.Parallel()
			ps, let := startSuspended(t, wait, timeout)
			for _, p := range ps {
				p.Signal(syscall.SIGSTOP)
			}
			time.Sleep(timeout + time.Second)
			for _, p := range ps {
				p.Signal(syscall.SIGCONT)
			}
			time.Sleep(time.Second) // in this second a rank would time out if its timeout counted the suspension
			let()
			for r, p := range ps {
				if code := p.Wait(); code != 0 || p.Stdout() != "waiting\nsum 6\n" {
					t.Errorf("rank %d printed %q, exit code %d", r, p.Stdout(), code)
				}
			}
		})
	}
}
