package main

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goddp/goddp/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m, nil) }

// programs returns the folder that holds golaunch and the worker.
func programs(t *testing.T) string {
	t.Helper()
	return testkit.Build(t, "cmd/golaunch", "test/stop/worker")
}

// TestShortCampaign runs 12 jobs, so that each combination of package, inputs and target occurs.
func TestShortCampaign(t *testing.T) {
	testkit.Long(t)
	if failed := campaign(t.Context(), programs(t), 12, 4, 100*time.Millisecond, 1, false); failed > 0 {
		t.Errorf("%d jobs of 12 failed", failed)
	}
}

// start starts a job of three ranks and waits until all of them train. It returns their process ids by rank.
func start(t *testing.T, launcher []string, worker ...string) (p *testkit.Process, pids [3]int) {
	t.Helper()
	bin := programs(t)
	args := append(append([]string{"--nproc-per-node", "3", "--log-dir", t.TempDir()}, launcher...), filepath.Join(bin, "worker"))
	cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "golaunch"), append(args, worker...)...)
	cmd.Env = testkit.Env("GODDP_DEVICE=cpu")
	p = testkit.Start(t, cmd)
	p.Await(`rank \d is pid`, 3)
	for _, l := range p.Matches(`rank \d is pid`) {
		_, said, _ := strings.Cut(l.Text, "]: ")
		var rank, pid int
		if _, err := fmt.Sscanf(said, "rank %d is pid %d", &rank, &pid); err != nil {
			t.Fatal(err)
		}
		pids[rank] = pid
	}
	return p, pids
}

func send(t *testing.T, pid int, sig syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, sig); err != nil {
		t.Fatal(err)
	}
}

// expectEnd waits for the job's end and checks golaunch's exit code and the output. The output must
// match every pattern and contain no unwanted text.
func expectEnd(t *testing.T, p *testkit.Process, code int, patterns []string, unwanted ...string) {
	t.Helper()
	if got := p.Wait(); got != code {
		t.Errorf("exit code %d, want %d", got, code)
	}
	said := p.Stdout() + p.Stderr()
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
}

// TestProgramWithoutStoppingEndsAtOnce runs a program that never calls Stopping: no rank saves.
func TestProgramWithoutStoppingEndsAtOnce(t *testing.T) {
	testkit.Long(t)
	p, _ := start(t, nil, "-call-stopping=false")
	p.Signal(syscall.SIGTERM)
	expectEnd(t, p, 143, []string{"SIGTERM: stopping rank 0", "signal: terminated"}, " saves step", "to finish the step")
}

// TestSecondSignalToGolaunchKillsRanks sends the second signal while the ranks save.
func TestSecondSignalToGolaunchKillsRanks(t *testing.T) {
	testkit.Long(t)
	p, _ := start(t, nil, "-saving", "10m")
	p.Signal(syscall.SIGTERM)
	p.Await("saving", 1)
	p.Signal(syscall.SIGINT) // a second SIGTERM within a second would count as the first
	expectEnd(t, p, 143, []string{"killing rank 0"}, " saves step")
}

// TestSecondSignalToARankEndsItsContext sends the second signal a second or more after the first,
// because comm counts signals that come closer together as one request.
func TestSecondSignalToARankEndsItsContext(t *testing.T) {
	testkit.Long(t)
	p, pids := start(t, nil, "-saving", "10m")
	send(t, pids[1], syscall.SIGINT)
	p.Await("saving", 1)
	send(t, pids[1], syscall.SIGINT) // counts as the first request
	for deadline := time.Now().Add(testkit.Soon); len(p.Matches("error: signal: interrupt")) == 0 && time.Now().Before(deadline); time.Sleep(1100 * time.Millisecond) {
		syscall.Kill(pids[1], syscall.SIGINT) // it may have ended
	}
	expectEnd(t, p, 130, []string{`rank 1 \(local rank 1, pid`, "exited with code 130", "signal: interrupt"}, " saves step")
}

// TestStopTimeoutDoesNotBoundSaving checks that half of the shutdown timeout bounds the step, and not
// the time that saving takes.
func TestStopTimeoutDoesNotBoundSaving(t *testing.T) {
	testkit.Long(t)
	p, _ := start(t, []string{"--shutdown-timeout", "60"}, "-saving", "1s")
	p.Signal(syscall.SIGTERM)
	expectEnd(t, p, 143, []string{"waiting up to 30s for ranks 0-2", "rank 0 saves", "rank 1 saves", "rank 2 saves"}, "error:")
}

// TestRankThatHangsIsNamed has a rank that hangs in its step, so that the ranks cannot agree to stop.
// All ranks end after half of the shutdown timeout, and the error names the rank that hangs. The end is
// a failure if golaunch did not get the signal.
func TestRankThatHangsIsNamed(t *testing.T) {
	testkit.Long(t)
	const (
		hangs      = 1
		behind     = "rank 1 is behind|rank 1 left no record" // rank 1 leaves no record if it is slow to answer
		unfinished = "by rank 1: signal: terminated: asked to stop, this rank did not finish its step within 6s"
		unanswered = "the coordinator, in .*, does not answer" // on a busy machine it may be slow to answer too
	)
	for _, c := range []struct {
		name   string
		target int // the rank that gets the signal; -1 for golaunch
		code   int
		expect []string
	}{
		{"signal to golaunch", -1, 143, []string{"waiting up to 6s for ranks 0-2", behind + "|" + unfinished + "|" + unanswered}},
		{"signal to another rank", 2, 1, []string{behind + "|" + unanswered}},
		{"signal to the rank that hangs", hangs, 1, []string{unfinished}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for range 3 {
				p, pids := start(t, []string{"--shutdown-timeout", "12"}, "-stall", fmt.Sprint(hangs))
				p.Await(fmt.Sprintf("rank %d hangs", hangs), 1)
				signalled, to := time.Now(), p.Cmd.Process.Pid
				if c.target >= 0 {
					to = pids[c.target]
				}
				send(t, to, syscall.SIGTERM)
				expectEnd(t, p, c.code, c.expect, " saves step")
				if took := time.Since(signalled); took < 6*time.Second {
					t.Errorf("the job ended after %v, before half of the shutdown timeout", took)
				}
				if len(p.Matches(behind+"|"+unfinished)) > 0 {
					return
				}
			}
			t.Error("no error names the rank that hangs, in three jobs")
		})
	}
}
