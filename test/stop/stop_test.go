package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// programs is the folder that holds golaunch and the worker.
var programs string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "stop-")
	if err == nil {
		programs = dir
		err = build(context.Background(), dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.RemoveAll(dir)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		os.RemoveAll(dir)
		os.Exit(code)
	}))
}

// TestShortCampaign runs 12 jobs, so that each combination of package, inputs and target occurs.
func TestShortCampaign(t *testing.T) {
	if failed := campaign(t.Context(), programs, 12, 4, 100*time.Millisecond, 1, false); failed > 0 {
		t.Errorf("%d jobs of 12 failed", failed)
	}
}

// runningJob is a job to which a test sends signals.
type runningJob struct {
	cmd  *exec.Cmd
	out  *output
	pids []int // by rank
}

// start starts a job of three ranks and waits until all of them train.
func start(t *testing.T, launcher []string, worker ...string) *runningJob {
	t.Helper()
	args := append(append([]string{"--nproc-per-node", "3", "--log-dir", t.TempDir()}, launcher...), filepath.Join(programs, "worker"))
	s := &runningJob{out: newOutput()}
	s.cmd = exec.CommandContext(t.Context(), filepath.Join(programs, "golaunch"), append(args, worker...)...)
	s.cmd.Env = append(os.Environ(), "GODDP_DEVICE=cpu")
	s.cmd.Stdout, s.cmd.Stderr = s.out, s.out
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var err error
	if s.pids, err = s.out.pids(t.Context(), 3); err != nil {
		t.Fatal(err, s.out)
	}
	return s
}

func (s *runningJob) signal(t *testing.T, pid int, sig syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, sig); err != nil {
		t.Fatal(err)
	}
}

// awaitText waits until the job has written text.
func (s *runningJob) awaitText(t *testing.T, text string) {
	t.Helper()
	if err := s.out.await(t.Context(), func(said string) bool { return strings.Contains(said, text) }); err != nil {
		t.Fatalf("%q is missing: %v\n%s", text, err, s.out)
	}
}

// awaitEnd waits for the job's end and checks golaunch's exit code and the output. The output must
// match every pattern and contain no unwanted text.
func (s *runningJob) awaitEnd(t *testing.T, code int, patterns []string, unwanted ...string) {
	t.Helper()
	s.cmd.Wait() // the exit code is checked below
	if got := s.cmd.ProcessState.ExitCode(); got != code {
		t.Errorf("exit code %d, want %d", got, code)
	}
	said := s.out.String()
	for _, pattern := range patterns {
		if !regexp.MustCompile(pattern).MatchString(said) {
			t.Errorf("the output does not match %q", pattern)
		}
	}
	for _, text := range unwanted {
		if strings.Contains(said, text) {
			t.Errorf("the output contains %q", text)
		}
	}
	if t.Failed() {
		t.Log(said)
	}
}

// TestProgramWithoutStoppingEndsAtOnce runs a program that never calls Stopping: no rank saves.
func TestProgramWithoutStoppingEndsAtOnce(t *testing.T) {
	s := start(t, nil, "-call-stopping=false")
	s.signal(t, s.cmd.Process.Pid, syscall.SIGTERM)
	s.awaitEnd(t, 143, []string{"SIGTERM: stopping rank 0", "signal: terminated"}, " saves step", "to finish the step")
}

// TestSecondSignalToGolaunchKillsRanks sends the second signal while the ranks save.
func TestSecondSignalToGolaunchKillsRanks(t *testing.T) {
	s := start(t, nil, "-saving", "10m")
	s.signal(t, s.cmd.Process.Pid, syscall.SIGTERM)
	s.awaitText(t, "saving")
	s.signal(t, s.cmd.Process.Pid, syscall.SIGINT) // a second SIGTERM within a second would count as the first
	s.awaitEnd(t, 143, []string{"killing rank 0"}, " saves step")
}

// TestSecondSignalToARankEndsItsContext sends the second signal a second or more after the first,
// because comm counts signals that come closer together as one request.
func TestSecondSignalToARankEndsItsContext(t *testing.T) {
	s := start(t, nil, "-saving", "10m")
	s.signal(t, s.pids[1], syscall.SIGINT)
	s.awaitText(t, "saving")
	s.signal(t, s.pids[1], syscall.SIGINT) // counts as the first request
	deadline := time.Now().Add(time.Minute)
	for !strings.Contains(s.out.String(), "error: signal: interrupt") && time.Now().Before(deadline) {
		syscall.Kill(s.pids[1], syscall.SIGINT)
		select {
		case <-s.out.written:
		case <-time.After(1100 * time.Millisecond):
		}
	}
	s.awaitEnd(t, 130, []string{`rank 1 \(local rank 1, pid`, "exited with code 130", "signal: interrupt"}, " saves step")
}

// TestStopTimeoutDoesNotBoundSaving checks that half of the shutdown timeout bounds the step, and not
// the time that saving takes.
func TestStopTimeoutDoesNotBoundSaving(t *testing.T) {
	s := start(t, []string{"--shutdown-timeout", "60"}, "-saving", "1s")
	s.signal(t, s.cmd.Process.Pid, syscall.SIGTERM)
	s.awaitEnd(t, 143, []string{"waiting up to 30s for ranks 0-2", "rank 0 saves", "rank 1 saves", "rank 2 saves"}, "error:")
}

// TestRankThatHangsIsNamed has a rank that hangs in its step, so that the ranks cannot agree to stop.
// All ranks end after half of the shutdown timeout, and the error names the rank that hangs. The end is
// a failure if golaunch did not get the signal.
func TestRankThatHangsIsNamed(t *testing.T) {
	const (
		hangs      = 1
		behind     = "rank 1 is behind|rank 1 left no record" // rank 1 leaves no record if it is slow to answer
		unfinished = "by rank 1: signal: terminated: asked to stop, this rank did not finish its step within 10s"
		unanswered = "the coordinator, in .*, does not answer" // on a busy machine it may be slow to answer too
	)
	for _, c := range []struct {
		name   string
		target int // the rank that gets the signal; -1 for golaunch
		code   int
		expect []string
	}{
		{"signal to golaunch", -1, 143, []string{"waiting up to 10s for ranks 0-2", behind + "|" + unfinished + "|" + unanswered}},
		{"signal to another rank", 2, 1, []string{behind + "|" + unanswered}},
		{"signal to the rank that hangs", hangs, 1, []string{unfinished}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for range 3 {
				s := start(t, []string{"--shutdown-timeout", "20"}, "-stall", fmt.Sprint(hangs))
				s.awaitText(t, fmt.Sprintf("rank %d hangs", hangs))
				signalled, to := time.Now(), s.cmd.Process.Pid
				if c.target >= 0 {
					to = s.pids[c.target]
				}
				s.signal(t, to, syscall.SIGTERM)
				s.awaitEnd(t, c.code, c.expect, " saves step")
				if took := time.Since(signalled); took < 10*time.Second {
					t.Errorf("the job ended after %v, before half of the shutdown timeout", took)
				}
				if regexp.MustCompile(behind + "|" + unfinished).MatchString(s.out.String()) {
					return
				}
			}
			t.Error("no error names the rank that hangs, in three jobs")
		})
	}
}
