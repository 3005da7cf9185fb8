package examples

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/goddp/goddp/internal/testkit"
)

// outcome returns the results of a run in dir: the losses and accuracies that it logged, with all
// digits, and gpt's weights. A step that was computed twice must have logged the same twice.
func outcome(t *testing.T, dir string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "run.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for line := range bytes.Lines(text) {
		var entry map[string]json.RawMessage
		if err := json.Unmarshal(line, &entry); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		for _, kind := range []string{"loss", "accuracy"} {
			name := fmt.Sprintf("%s of step %s", kind, entry["step"])
			if value, ok := entry[kind]; !ok {
				continue
			} else if before, ok := all[name]; ok && before != string(value) {
				t.Errorf("the %s is %s, computed again %s", name, before, value)
			} else {
				all[name] = string(value)
			}
		}
	}
	if weights, err := os.ReadFile(filepath.Join(dir, "weights")); err == nil {
		all["weights"] = string(weights)
	}
	return all
}

// compareOutcomes compares the outcome of an interrupted run with that of an unbroken run.
func compareOutcomes(t *testing.T, got, want map[string]string) {
	t.Helper()
	if len(want) < 4 {
		t.Fatalf("only %d losses, accuracies and weights", len(want))
	}
	for name, value := range want {
		if got[name] != value {
			t.Errorf("the %s is %.20q after an interruption, want %.20q", name, got[name], value)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d values after an interruption, want %d", len(got), len(want))
	}
}

// TestInterruptedRunEndsAsUnbrokenRun interrupts runs on two ranks in three ways. Each time the same command resumes
// from the latest checkpoint, and its outcome equals that of an unbroken run bit for bit.
func TestInterruptedRunEndsAsUnbrokenRun(t *testing.T) {
	testkit.Long(t)
	text := filepath.Join(t.TempDir(), "text")
	writeText(t, text)
	bin := build(t)
	common := []string{"--batch", "20", "--lr", "0.01", "--resume", "run", "--log", "run.jsonl"}
	gpt := append([]string{filepath.Join(bin, "gpt"), "--text", text, "--layers", "1", "--heads", "2", "--embed", "16", "--context", "9",
		"--steps", "200", "--warmup", "10", "--save", "weights", "--sample", "10"}, common...) // it ends in the middle of an epoch
	fashion := append([]string{filepath.Join(bin, "fashion"), "--model", "mlp", "--data", clothes(t, 400, 101), "--epochs", "20"}, common...)

	unbrokenDir := t.TempDir()
	succeed(t, job(t, unbrokenDir, 2, append(gpt, "--save-every", "90")...))
	want := outcome(t, unbrokenDir)
	t.Run("gpt, later checkpoints are lost", func(t *testing.T) { loseCheckpoints(t, unbrokenDir, gpt, want) })
	t.Run("gpt, SIGTERM", func(t *testing.T) { stop(t, gpt, want) })
	t.Run("gpt, SIGKILL", func(t *testing.T) { restart(t, append(gpt, "--save-every", "7"), want) })
	t.Run("fashion, SIGTERM", func(t *testing.T) {
		dir := t.TempDir()
		succeed(t, job(t, dir, 2, fashion...))
		stop(t, fashion, outcome(t, dir))
	})
}

// loseCheckpoints deletes all checkpoints of a finished run but the first, and resumes from that.
func loseCheckpoints(t *testing.T, dir string, args []string, want map[string]string) {
	saved, err := filepath.Glob(filepath.Join(dir, "run", "step-*"))
	if err != nil || len(saved) < 2 {
		t.Fatalf("%q are saved, want at least 2 checkpoints", saved)
	}
	for _, lost := range saved[1:] {
		if err := os.RemoveAll(lost); err != nil {
			t.Fatal(err)
		}
	}
	succeed(t, job(t, dir, 2, args...))
	compareOutcomes(t, outcome(t, dir), want)
}

// stop sends SIGTERM to golaunch when the run prints its first step, and resumes. No step is lost, because
// the run saves a checkpoint before it ends.
func stop(t *testing.T, args []string, want map[string]string) {
	dir := t.TempDir()
	p := testkit.Start(t, job(t, dir, 2, args...))
	p.Await("step ", 1)
	p.Signal(syscall.SIGTERM)
	if code := p.Wait(); code != 128+int(syscall.SIGTERM) {
		t.Fatalf("exit code %d, want 143", code)
	}
	if n := len(outcome(t, dir)); n == 0 || n >= len(want) {
		t.Errorf("the run stopped after %d of %d values, want some but not all", n, len(want))
	}
	succeed(t, job(t, dir, 2, args...))
	compareOutcomes(t, outcome(t, dir), want)
}

// restart kills rank 1 when a checkpoint exists. golaunch restarts the job, which resumes. restart returns its standard output.
func restart(t *testing.T, args []string, want map[string]string) string {
	dir := t.TempDir()
	r := succeed(t, job(t, dir, 2, append([]string{"--max-restarts", "1", killer(t)}, args...)...))
	if !strings.Contains(r.Stderr, "137") {
		t.Errorf("no rank was killed:\n%s", r.Stderr)
	}
	compareOutcomes(t, outcome(t, dir), want)
	return r.Stdout
}

// killer returns the path of a script that runs the command in its arguments. In the first attempt of rank
// 1, the script kills that command when a checkpoint exists in the folder run.
func killer(t *testing.T) string {
	const script = `#!/bin/sh
if [ "$RANK" = 1 ] && [ "$TORCHELASTIC_RESTART_COUNT" = 0 ]; then
	"$@" & while [ ! -e run/latest ]; do :; done
	kill -9 $!; exit 137
fi
exec "$@"`
	path := filepath.Join(t.TempDir(), "killer")
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestRecoverFromACheckpoint kills a rank. golaunch starts all ranks again, none of which has the state.
// They go on from the latest checkpoint, and end with the parameters of a run without the failure.
func TestRecoverFromACheckpoint(t *testing.T) {
	testkit.Long(t)
	args := []string{filepath.Join(build(t), "recover"), "--steps", "600", "--save-every", "50", "--resume", "run", "--log", "run.jsonl"}
	dir := t.TempDir()
	want := digest(t, succeed(t, job(t, dir, 2, args...)).Stdout, 2)
	out := restart(t, args, outcome(t, dir))
	if got := digest(t, out, 2); got != want {
		t.Errorf("the parameters are %s, want %s", got, want)
	}
	if !regexp.MustCompile(`rank 1: starts at step [1-9]\d*\n`).MatchString(out) {
		t.Errorf("rank 1 did not start after a checkpoint:\n%s", out)
	}
}

// TestRecoverAfterStall has a rank that sleeps past the others' timeout. All ranks go on in the same
// processes from the last committed step, and end with the parameters of a run without the stall.
func TestRecoverAfterStall(t *testing.T) {
	testkit.Long(t)
	const ranks, steps, stall = 3, 12, 5
	args := []string{"--steps", fmt.Sprint(steps), "--timeout", "3s", "--log", "run.jsonl"}
	plainDir, stalledDir := t.TempDir(), t.TempDir()
	want := digest(t, launch(t, plainDir, ranks, "recover", args...).Stdout, ranks)
	out := launch(t, stalledDir, ranks, "recover", append(args, "--stall-rank", "1", "--stall-step", fmt.Sprint(stall))...).Stdout
	if got := digest(t, out, ranks); got != want {
		t.Errorf("the parameters are %s, want %s", got, want)
	}
	for r := range ranks {
		for _, line := range []string{fmt.Sprintf("rank %d: starts at step 0\n", r), fmt.Sprintf("rank %d: group 1 broke: ", r), fmt.Sprintf("rank %d: starts at step %d\n", r, stall)} {
			if strings.Count(out, line) != 1 {
				t.Errorf("the output does not contain %q once:\n%s", line, out)
			}
		}
	}
	compareOutcomes(t, outcome(t, stalledDir), outcome(t, plainDir))
}
