package launcher

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goddp/goddp/internal/coordinator"
	"github.com/goddp/goddp/internal/handshake"
	"github.com/goddp/goddp/internal/jobenv"
	"github.com/goddp/goddp/internal/store"
	"github.com/goddp/goddp/internal/testkit"
)

// testSurvivor is a worker that enters one epoch after another. In an epoch, it meets the fate that its arguments,
// each time:worker:fate, have for it there; * means all workers. A time is the number of an epoch, "start" in a worker
// that replaces another, "joined" in the epochs in which such a worker takes part, or "rejoined" in those of all workers in
// which at least the fourth such worker takes part. A worker without a fate waits until a
// member is lost or a worker wishes to join.
func testSurvivor() {
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	job, err := jobenv.ReadJob(os.LookupEnv)
	check(err)
	security, err := jobenv.ReadSecurity(os.LookupEnv)
	check(err)
	secret, err := handshake.ReadSecret(security)
	check(err)
	m := store.Member{Job: handshake.Job{ID: job.ID, World: job.WorldSize}, Rank: -1, Secret: secret}
	kv, err := store.Dial(ctx, job.Agent.Store, &store.ClientOptions{Member: &m})
	check(err)
	m.Rank = job.Agent.Worker
	ready := coordinator.Ready{Holds: !job.Agent.Joins}
	meet := func(c *coordinator.Client, times ...string) {
		for _, arg := range os.Args[1:] {
			fate := strings.Split(arg, ":")
			if !slices.Contains(times, fate[0]) || fate[1] != "*" && fate[1] != strconv.Itoa(m.Rank) {
				continue
			}
			switch fate[2] {
			case "exit0":
				c.Depart(ctx)
				os.Exit(0)
			case "exit3":
				os.Exit(3)
			case "orphaned":
				check(syscall.Kill(os.Getppid(), syscall.SIGKILL))
			case "killed":
				check(syscall.Kill(os.Getpid(), syscall.SIGKILL))
			case "suspended":
				check(syscall.Kill(os.Getpid(), syscall.SIGSTOP))
			}
		}
	}
	if job.Agent.Joins {
		meet(nil, "start")
	}
	for {
		c, err := coordinator.Find(ctx, store.Prefix(kv, coordinator.LauncherPrefix), m, coordinator.ClientOptions{Size: job.WorldSize})
		check(err)
		isFirst := ready.Epoch == 0 && !job.Agent.Joins
		if isFirst {
			_, err = c.Join(ctx, 1, nil, false, nil)
			check(err)
		}
		order, err := c.Root().Enter(ctx, ready)
		if errors.Is(err, coordinator.ErrReleased) {
			fmt.Println("released")
			os.Exit(0)
		}
		check(err)
		ready.Epoch = order.Epoch
		if !isFirst {
			if _, err = c.Join(ctx, order.Epoch, nil, false, nil); err != nil { // a member is lost, or a worker joins
				c.Depart(ctx)
				continue
			}
		}
		fmt.Printf("epoch %d: rank %d of %d\n", order.Epoch, c.Root().Rank(), len(order.Workers))
		times := []string{strconv.Itoa(order.Epoch)}
		if slices.Max(order.Workers) >= job.WorldSize {
			times = append(times, "joined")
			if slices.Max(order.Workers) >= job.WorldSize+3 && len(order.Workers) == job.WorldSize {
				times = append(times, "rejoined")
			}
		}
		meet(c, times...)
		select {
		case <-c.Root().Settled():
		case <-ctx.Done():
			check(ctx.Err())
		}
		c.Depart(ctx)
		ready.Steps, ready.Holds = 100*order.Epoch, true
	}
}

// survivors returns a job of four workers with fates.
func survivors(t *testing.T, f OnFailure, fates ...string) *job {
	j := role(t, 4, "survivor", fates...)
	j.cfg.OnFailure = f
	return j
}

// expectLines checks that golaunch's own lines match the patterns, in this order.
func (j *job) expectLines(t *testing.T, patterns ...string) {
	t.Helper()
	if want := regexp.MustCompile(`^(golaunch: ` + strings.Join(patterns, "\ngolaunch: ") + "\n)$"); !want.MatchString(j.err.String()) {
		t.Errorf("stderr:\n%s\nwant:\n%s", &j.err, want)
	}
}

// The other workers go on without one that is lost, and without a second one.
func TestShrink(t *testing.T) {
	j := survivors(t, Shrink, "1:2:killed", "2:0:exit3", "3:*:exit0")
	if _, err := j.run(t); err != nil {
		t.Errorf("the job failed: %v", err)
	}
	j.expectLines(t,
		`worker 2 \(rank 2, pid \d+\) was killed by SIGKILL; 3 workers go on`,
		`epoch 2: 3 workers at step 100 after \d\.\d\d s`,
		`worker 0 \(rank 0, pid \d+\) exited with code 3; 2 workers go on`,
		`epoch 3: 2 workers at step 200 after \d\.\d\d s`)
	for _, line := range []string{"[default0]: epoch 1: rank 0 of 4", "[default3]: epoch 2: rank 2 of 3", "[default3]: epoch 3: rank 1 of 2"} {
		if !strings.Contains(j.out.String(), line+"\n") {
			t.Errorf("stdout lacks %q:\n%s", line, &j.out)
		}
	}
}

// If a worker is a shell, the loss of the shell is the loss of its child.
func TestChildOfALostWorkerIsKilled(t *testing.T) {
	j := survivors(t, Shrink, "1:2:orphaned", "2:*:exit0")
	j.cfg.Args = append([]string{"bash", "-c", `"$@"; exit $?`, "bash"}, j.cfg.Args...)
	if _, err := j.run(t); err != nil {
		t.Errorf("the job failed: %v", err)
	}
	j.expectLines(t, `worker 2 .* was killed by SIGKILL; 3 workers go on`, `epoch 2: 3 workers .*`)
}

// An attempt fails as ever if a worker is lost before all have entered an epoch, or if too few are left.
func TestLossThatFailsTheAttempt(t *testing.T) {
	for name, tt := range map[string]struct {
		j    *job
		min  int
		text string
	}{
		"not declared": {shell(4, "[ $RANK = 2 ] || exec sleep 1000; exit 3"), 1,
			"golaunch: the program has not declared that it can go on without a worker (elastic.Run): ending\n"},
		"below the minimum": {survivors(t, Shrink, "1:2:exit3"), 4, "golaunch: 3 workers left, want at least 4 (--min-workers): ending\ngolaunch: rank 2 "},
		"below the minimum later": {survivors(t, Shrink, "1:1:killed", "2:3:exit3"), 3,
			"The last workers lost before, without which the others went on:\n  rank 1 (local_rank: 1, pid: "},
	} {
		t.Run(name, func(t *testing.T) {
			tt.j.cfg.OnFailure, tt.j.cfg.MinWorkers = Shrink, tt.min
			if e := tt.j.fail(t); e.Rank != 2 || ExitCode(e) != 3 || !strings.Contains(tt.j.err.String(), tt.text) {
				t.Errorf("got %v, stderr\n%s, want rank 2, and %s", e, &tt.j.err, tt.text)
			}
		})
	}
}

// A new worker takes the place of a lost one. With a minimum of all workers, the others wait for it.
func TestReplace(t *testing.T) {
	lost := `worker 2 \(rank 2, pid \d+\) was killed by SIGKILL; 3 workers go on`
	for name, tt := range map[string]struct {
		min   int
		fates []string
		lines []string
	}{
		"joins later": {1, []string{"1:2:killed", "joined:*:exit0"}, []string{lost,
			`(epoch 2: 3 workers .*\ngolaunch: )?worker 4 started in place of worker 2 \(attempt 1 of 3\)(\ngolaunch: epoch 2: 3 workers .*)?`,
			`epoch \d: worker 4 joined as rank 3; 4 workers at step \d00.*`}},
		"is waited for": {4, []string{"1:2:killed", "2:*:exit0"}, []string{lost,
			`worker 4 started in place of worker 2 \(attempt 1 of 3\)`, `epoch 2: worker 4 joined as rank 3; 4 workers at step 100 after \d\.\d\d s`}},
		"fails again and again": {1, []string{"1:2:killed", "start:*:exit3"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := survivors(t, Replace, tt.fates...)
			j.cfg.MinWorkers = tt.min
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if tt.lines == nil {
				testkit.Long(t) // there are pauses between the workers
				given := j.err.contains("local rank 2 gets no other worker: 3 in a row have ended within 1m0s of their start")
				go func() {
					<-given
					cancel()
				}()
				if _, err := j.runContext(t, ctx); !errors.Is(err, context.Canceled) || len(j.workers) != 7 {
					t.Errorf("%d workers started, %v; stderr:\n%s", len(j.workers), err, &j.err)
				}
				return
			}
			if _, err := j.run(t); err != nil {
				t.Errorf("the job failed: %v", err)
			}
			j.expectLines(t, tt.lines...)
		})
	}
}

// A job that has succeeded is not made to fail by a new worker that has not joined.
func TestJobEndsBeforeAWorkerJoins(t *testing.T) {
	j := survivors(t, Replace, "1:2:killed", "2:*:exit0", "joined:*:exit0", "start:*:exit3")
	if _, err := j.run(t); err != nil {
		t.Errorf("the job failed: %v", err)
	}
}

// A worker that is suspended is killed.
func TestSuspendedWorkerIsLost(t *testing.T) {
	testkit.Long(t)
	j := survivors(t, Shrink, "1:2:suspended", "2:*:exit0")
	j.cfg.SilenceLimit = 3 * time.Second // a busy machine may keep the others from running for longer than LeastSilence
	if _, err := j.run(t); err != nil {
		t.Errorf("the job failed: %v", err)
	}
	j.expectLines(t,
		`worker 2 \(rank 2, pid \d+\) is killed: no message arrived from it for 3s`,
		`worker 2 \(rank 2, pid \d+\) was killed by SIGKILL; 3 workers go on`,
		`epoch 2: 3 workers at step 100 after \d\.\d\d s`)
}

// A signal stops a job that has lost a worker, and a worker that is lost meanwhile does not make the job fail.
func TestSignalStopsSurvivors(t *testing.T) {
	j := survivors(t, Shrink, "1:2:killed")
	signals := make(chan os.Signal, 1)
	j.cfg.Signals = signals
	gone := j.err.contains("epoch 2: 3 workers")
	go func() {
		<-gone
		signals <- syscall.SIGTERM
	}()
	_, err := j.run(t)
	var stopped *SignalError
	if !errors.As(err, &stopped) || stopped.Signal != syscall.SIGTERM {
		t.Errorf("got %v, want the end by SIGTERM", err)
	}
	j.expectLines(t,
		`worker 2 .* was killed by SIGKILL; 3 workers go on`, `epoch 2: 3 workers .*`,
		`SIGTERM: stopping rank 0 \(pid \d+\), rank 1 \(pid \d+\), rank 2 \(pid \d+\) .*`, `stopped by SIGTERM`)
}
