package examples

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// resumable returns the programs that save checkpoints, with their flags. Each trains for some
// seconds: 250 steps, which for gpt end in the middle of an epoch.
func resumable(t *testing.T) map[string][]string {
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte(strings.Repeat("the cat sat on the mat. ", 200)), 0o600); err != nil {
		t.Fatal(err)
	}
	common := []string{"--batch", "20", "--lr", "0.01", "--resume", "run", "--log", "run.jsonl"}
	return map[string][]string{
		"fashion": append([]string{filepath.Join(bin, "fashion"), "--model", "mlp", "--data", clothes(t, 400, 101), "--epochs", "25"}, common...),
		"gpt": append([]string{filepath.Join(bin, "gpt"), "--text", text, "--layers", "2", "--heads", "2", "--embed", "16", "--context", "17",
			"--steps", "250", "--warmup", "10", "--save", "weights", "--sample", "10"}, common...),
	}
}

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

// TestInterruptedRunEndsAsUnbrokenRun interrupts a run in three ways. Each time the same command resumes
// from the latest checkpoint, and its outcome equals that of an unbroken run bit for bit.
func TestInterruptedRunEndsAsUnbrokenRun(t *testing.T) {
	for program, args := range resumable(t) {
		t.Run(program, func(t *testing.T) {
			unbrokenDir := t.TempDir()
			launched(t, unbrokenDir, append(args, "--save-every", "90")...)
			want := outcome(t, unbrokenDir)
			t.Run("later checkpoints are lost", func(t *testing.T) { loseCheckpoints(t, unbrokenDir, args, want) })
			t.Run("SIGTERM", func(t *testing.T) { stop(t, args, want) })
			t.Run("SIGKILL", func(t *testing.T) { restart(t, args, want) })
		})
	}
}

// launched runs the program args[0], with the flags of golaunch before it, on two ranks in dir. It returns
// the output of the job.
func launched(t *testing.T, dir string, args ...string) string {
	t.Helper()
	return run(t, dir, "golaunch", append([]string{"--nproc-per-node", "2"}, args...)...)
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
	launched(t, dir, args...)
	compareOutcomes(t, outcome(t, dir), want)
}

// stop sends SIGTERM to golaunch when the run prints its first step, and resumes. No step is lost, because
// the run saves a checkpoint before it ends.
func stop(t *testing.T, args []string, want map[string]string) {
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "golaunch"), append([]string{"--nproc-per-node", "2"}, args...)...)
	cmd.Dir = dir
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for scanner := bufio.NewScanner(out); scanner.Scan(); {
		if strings.Contains(scanner.Text(), "step ") && !strings.Contains(text.String(), "step ") {
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Error(err)
			}
		}
		fmt.Fprintln(&text, scanner.Text())
	}
	cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 143 {
		t.Fatalf("exit code %d, want 143\n%s", code, &text)
	}
	if n := len(outcome(t, dir)); n == 0 || n >= len(want) {
		t.Errorf("the run stopped after %d of %d values, want some but not all", n, len(want))
	}
	launched(t, dir, args...)
	compareOutcomes(t, outcome(t, dir), want)
}

// restart kills rank 1 when a checkpoint exists. golaunch restarts the job, which resumes.
func restart(t *testing.T, args []string, want map[string]string) {
	dir := t.TempDir()
	out := launched(t, dir, append([]string{"--max-restarts", "1", killer(t)}, append(args, "--save-every", "7")...)...)
	if !strings.Contains(out, "137") {
		t.Errorf("no rank was killed:\n%s", out)
	}
	compareOutcomes(t, outcome(t, dir), want)
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
