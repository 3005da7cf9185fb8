package examples

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
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
// the run saves a checkpoint before it ends. On a busy machine the run may end before the signal comes. Then another
// one is stopped.
func stop(t *testing.T, args []string, want map[string]string) {
	for range 3 {
		dir := t.TempDir()
		p := testkit.Start(t, job(t, dir, 2, args...))
		p.Await("step ", 1)
		_ = p.Cmd.Process.Signal(syscall.SIGTERM) // the run may have ended
		code := p.Wait()
		n := len(outcome(t, dir))
		if n == len(want) {
			continue
		}
		if code != 128+int(syscall.SIGTERM) || n == 0 {
			t.Fatalf("exit code %d after %d of %d values, want 143, and some but not all", code, n, len(want))
		}
		succeed(t, job(t, dir, 2, args...))
		compareOutcomes(t, outcome(t, dir), want)
		return
	}
	t.Error("three runs ended before the signal")
}

// restart kills rank 1 when a checkpoint exists. golaunch restarts the job, which resumes.
func restart(t *testing.T, args []string, want map[string]string) {
	dir := t.TempDir()
	r := succeed(t, job(t, dir, 2, append([]string{"--max-restarts", "1", killer(t, "run/latest")}, args...)...))
	if !strings.Contains(r.Stderr, "137") {
		t.Errorf("no rank was killed:\n%s", r.Stderr)
	}
	compareOutcomes(t, outcome(t, dir), want)
}

// killer returns the path of a script that runs the command in its arguments. In the first attempt of rank
// 1, the script kills that command when the file is there and not empty.
func killer(t *testing.T, file string) string {
	script := `#!/bin/sh
if [ "$RANK" = 1 ] && [ "$TORCHELASTIC_RESTART_COUNT" = 0 ]; then
	"$@" & while [ ! -s ` + file + ` ]; do :; done
	kill -9 $!; exit 137
fi
exec "$@"`
	path := filepath.Join(t.TempDir(), "killer")
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestSurvive kills a rank when the others have logged a step. They go on to the end, in the same processes.
func TestSurvive(t *testing.T) {
	testkit.Long(t)
	dir := t.TempDir()
	r := succeed(t, job(t, dir, 3, "--on-failure", "shrink", killer(t, "run.jsonl"), filepath.Join(build(t), "survive"), "--epochs", "20", "--log", "run.jsonl"))
	if !strings.Contains(r.Stderr, "2 workers go on") || !strings.Contains(r.Stderr, "epoch 2: 2 workers at step ") {
		t.Errorf("no rank was lost:\n%s", r.Stderr)
	}
}
