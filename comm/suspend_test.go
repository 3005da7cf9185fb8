//go:build unix

package comm_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
	"time"

	"github.com/goddp/goddp/comm"
)

// In the test program suspended, ranks 0 and 2 wait for rank 1, in Init, in an AllReduce or in
// a MonitoredBarrier. GODDP_TEST_WAIT says where they wait: join, sum or barrier. Rank 1 joins
// them only when the file "go" exists. GODDP_TEST_TIMEOUT is the timeout of that wait. Each rank
// creates a file just before it begins to wait.
func suspended(ctx context.Context) error {
	timeout, err := time.ParseDuration(os.Getenv("GODDP_TEST_TIMEOUT"))
	if err != nil {
		return err
	}
	rank, dir, wait := os.Getenv("RANK"), os.Getenv("GODDP_TEST_DIR"), os.Getenv("GODDP_TEST_WAIT")
	come := func(to string) error {
		if err := os.WriteFile(filepath.Join(dir, "rank_"+rank), nil, 0o600); err != nil {
			return err
		}
		for rank == "1" && to == wait {
			if _, err := os.Stat(filepath.Join(dir, "go")); err == nil {
				break
			}
			time.Sleep(5 * time.Millisecond)
		}
		return nil
	}
	initTimeout := time.Minute // the start of the other processes may take long
	if wait == "join" {
		initTimeout = timeout
		if err := come("join"); err != nil {
			return err
		}
	}
	pg, err := comm.Init(ctx, &comm.Options{Timeout: initTimeout})
	if err != nil {
		return err
	}
	defer pg.Close()
	pg = pg.With(comm.CallOptions{Timeout: timeout})
	if wait != "join" {
		if err := come(wait); err != nil {
			return err
		}
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
}

// startSuspended starts three ranks of program suspended, and returns when all of them have
// begun to wait. The returned function `let` creates the file "go", so that rank 1 joins the
// other ranks.
func startSuspended(t *testing.T, wait string, timeout time.Duration) (ps []*process, let func()) {
	t.Helper()
	dir := t.TempDir()
	ps = startWorld(t, 3, "suspended", "GODDP_TEST_DIR="+dir, "GODDP_TEST_WAIT="+wait, "GODDP_TEST_TIMEOUT="+timeout.String())
	for r := range ps {
		for start := time.Now(); ; time.Sleep(5 * time.Millisecond) {
			if _, err := os.Stat(filepath.Join(dir, fmt.Sprint("rank_", r))); err == nil {
				break
			}
			if time.Since(start) > time.Minute {
				t.Fatalf("rank %d does not come", r)
			}
		}
	}
	time.Sleep(200 * time.Millisecond) // so that the ranks wait for rank 1
	return ps, func() {
		if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// suspend stops all processes for the time `length`, and then continues them one after the
// other. Processes that have ended stay as they are.
func suspend(t *testing.T, ps []*process, length time.Duration) {
	t.Helper()
	signal := func(sig os.Signal) {
		for _, p := range ps {
			if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
				t.Fatal(err)
			}
		}
	}
	signal(syscall.SIGSTOP)
	time.Sleep(length)
	signal(syscall.SIGCONT)
}

// If a whole job is suspended for longer than its timeout, it then continues normally, whether
// its ranks wait in Init, in a collective or in a barrier.
func TestSuspendedJobContinues(t *testing.T) {
	for wait, timeout := range map[string]time.Duration{
		"join": 6 * time.Second, // in which the processes also start
		"sum":  4 * time.Second, "barrier": 4 * time.Second,
	} {
		t.Run(wait, func(t *testing.T) {
			t.Parallel()
			ps, let := startSuspended(t, wait, timeout)
			suspend(t, ps, timeout+time.Second)
			time.Sleep(time.Second) // in this second a rank would time out if its timeout counted the suspension
			let()
			for r, p := range ps {
				if err := p.cmd.Wait(); err != nil || p.out.String() != "sum 6\n" {
					t.Errorf("rank %d printed %q, %v\n%s", r, &p.out, err, &p.err)
				}
			}
		})
	}
}

// If a job is stopped and continued again and again, the calls still time out, and the error
// names the missing rank.
func TestSuspensionsDoNotPostponeTimeoutsForever(t *testing.T) {
	for wait, want := range map[string]string{
		"join":    "rank 1 has not come",
		"sum":     `waiting for (ranks 0, |rank )1`, // ranks 0 and 2 also name each other if one is stopped when the other asks it
		"barrier": `in vain for rank 1`,
	} {
		t.Run(wait, func(t *testing.T) {
			t.Parallel()
			timeout := 1500 * time.Millisecond
			if wait == "join" {
				timeout = 3 * time.Second // in which the processes also start
			}
			ps, _ := startSuspended(t, wait, timeout)
			defer func() {
				for _, p := range ps[1:] {
					p.cmd.Process.Kill()
					p.cmd.Wait()
				}
			}()
			ended := make(chan error, 1)
			go func() { ended <- ps[0].cmd.Wait() }()
			const cycles = 60 // each counts as at least 1/16 of the timeout; rank 0 needs the others to find and to print the error
			for range cycles {
				suspend(t, ps, 800*time.Millisecond)
				select {
				case err := <-ended:
					if err == nil || !regexp.MustCompile(want).Match(ps[0].err.Bytes()) {
						t.Errorf("rank 0 ended with %v, want %s in\n%s", err, want, &ps[0].err)
					}
					return
				case <-time.After(300 * time.Millisecond):
				}
			}
			t.Errorf("rank 0 still waits after %d cycles", cycles)
			ps[0].cmd.Process.Kill()
			<-ended
		})
	}
}
