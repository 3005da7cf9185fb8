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

// programs is the folder with golaunch and the worker.
var programs string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "stop-")
	if err == nil {
		programs = dir
		err = build(context.Background(), dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		os.RemoveAll(dir)
		os.Exit(code)
	}))
}

// One job of each kind. The campaign has 100.
func TestShortCampaign(t *testing.T) {
	if failed := campaign(t.Context(), programs, 12, 4, 100*time.Millisecond, 1, false); failed > 0 {
		t.Errorf("%d jobs of 12 failed", failed)
	}
}

// started is a job that a test signals as it likes.
type started struct {
	cmd  *exec.Cmd
	out  *output
	pids []int // by rank
}

// start starts a job, whose ranks have all begun when it returns.
func start(t *testing.T, launcher []string, worker ...string) *started {
	t.Helper()
	args := append(append([]string{"--nproc-per-node", "3", "--log-dir", t.TempDir()}, launcher...), filepath.Join(programs, "worker"))
	s := &started{out: newOutput()}
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

func (s *started) signal(t *testing.T, pid int, sig syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, sig); err != nil {
		t.Fatal(err)
	}
}

// says waits until the job has written text.
func (s *started) says(t *testing.T, text string) {
	t.Helper()
	if err := s.out.await(t.Context(), func(said string) bool { return strings.Contains(said, text) }); err != nil {
		t.Fatalf("%q is missing: %v\n%s", text, err, s.out)
	}
}

// ends waits for the end, and checks the exit code and what golaunch and the ranks say: a match of
// each regular expression of has, and no text of lacks.
func (s *started) ends(t *testing.T, code int, has []string, lacks ...string) {
	t.Helper()
	s.cmd.Wait() // its error is the exit code
	if got := s.cmd.ProcessState.ExitCode(); got != code {
		t.Errorf("exit code %d, want %d", got, code)
	}
	said := s.out.String()
	for _, pattern := range has {
		if !regexp.MustCompile(pattern).MatchString(said) {
			t.Errorf("it does not say %q", pattern)
		}
	}
	for _, text := range lacks {
		if strings.Contains(said, text) {
			t.Errorf("it says %q", text)
		}
	}
	if t.Failed() {
		t.Log(said)
	}
}

// A program that never asks ends at once: no rank saves.
func TestProgramThatDoesNotAskEndsAtOnce(t *testing.T) {
	s := start(t, nil, "-heed=false")
	s.signal(t, s.cmd.Process.Pid, syscall.SIGTERM)
	s.ends(t, 143, []string{"SIGTERM: stopping rank 0", "signal: terminated"}, " saves step", "to finish the step")
}

// A second signal to golaunch kills, also while the ranks save.
func TestSecondSignalAborts(t *testing.T) {
	s := start(t, nil, "-saving", "10m")
	s.signal(t, s.cmd.Process.Pid, syscall.SIGTERM)
	s.says(t, "saving")
	s.signal(t, s.cmd.Process.Pid, syscall.SIGTERM)
	s.ends(t, 143, []string{"killing rank 0"}, " saves step")
}

// A second signal to a rank, later than those that a batch system sends at once, ends its
// context.
func TestSecondSignalToARankEndsItsContext(t *testing.T) {
	s := start(t, nil, "-saving", "10m")
	s.signal(t, s.pids[1], syscall.SIGINT)
	s.says(t, "saving")
	s.signal(t, s.pids[1], syscall.SIGINT) // the same request, as far as anybody can tell
	deadline := time.Now().Add(time.Minute)
	for !strings.Contains(s.out.String(), "error: signal: interrupt") && time.Now().Before(deadline) {
		syscall.Kill(s.pids[1], syscall.SIGINT)
		select {
		case <-s.out.written:
		case <-time.After(1100 * time.Millisecond):
		}
	}
	s.ends(t, 130, []string{`rank 1 \(local rank 1, pid`, "exited with code 130", "signal: interrupt"}, " saves step")
}

// Saving may take longer than half of the shutdown timeout: that bounds the step alone.
func TestSavingMayTakeLonger(t *testing.T) {
	s := start(t, []string{"--shutdown-timeout", "60"}, "-saving", "1s")
	s.signal(t, s.cmd.Process.Pid, syscall.SIGTERM)
	s.ends(t, 143, []string{"waiting up to 30s for ranks 0-2", "rank 0 saves", "rank 1 saves", "rank 2 saves"}, "error:")
}

// A rank that hangs in its step keeps the others from agreeing: after half of the shutdown
// timeout all end, and the error names the rank. If golaunch was not asked, that is a
// failure.
func TestRankThatHangsIsNamed(t *testing.T) {
	const (
		hangs      = 1
		behind     = "rank 1 is behind|rank 1 left no record" // the latter if it is slow to answer
		unfinished = "by rank 1: signal: terminated: asked to stop, this rank did not finish its step within 3s"
	)
	for _, c := range []struct {
		name   string
		rank   int // that is signalled; -1: golaunch
		code   int
		expect []string
	}{
		{"golaunch is asked", -1, 143, []string{"waiting up to 3s for ranks 0-2", behind + "|" + unfinished}},
		{"another rank is asked", 2, 1, []string{behind}},
		{"the rank itself is asked", hangs, 1, []string{unfinished}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := start(t, []string{"--shutdown-timeout", "6"}, "-stall", fmt.Sprint(hangs))
			s.says(t, fmt.Sprintf("rank %d hangs", hangs))
			begun, to := time.Now(), s.cmd.Process.Pid
			if c.rank >= 0 {
				to = s.pids[c.rank]
			}
			s.signal(t, to, syscall.SIGTERM)
			s.ends(t, c.code, c.expect, " saves step")
			if took := time.Since(begun); took < 3*time.Second {
				t.Errorf("it ended after %v, before half of the shutdown timeout", took)
			}
		})
	}
}
