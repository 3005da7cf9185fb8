package examples

import (
	"bufio"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// clothes writes the four files of a data set like Fashion-MNIST: an image of
// class c has a bright stripe at row 2c.
func clothes(t *testing.T, train, test int) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for prefix, n := range map[string]int{"train": train, "t10k": test} {
		images := []byte{0, 0, 8, 3}
		for _, size := range []int{n, 28, 28} {
			images = binary.BigEndian.AppendUint32(images, uint32(size))
		}
		labels := binary.BigEndian.AppendUint32([]byte{0, 0, 8, 1}, uint32(n))
		for i := range n {
			class := i % 10
			image := make([]byte, 28*28)
			for column := range 28 {
				image[2*class*28+column] = byte(128 + (i*column)%128)
			}
			images, labels = append(images, image...), append(labels, byte(class))
		}
		for name, content := range map[string][]byte{"-images-idx3-ubyte": images, "-labels-idx1-ubyte": labels} {
			if err := os.WriteFile(filepath.Join(dir, prefix+name), content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

// TestFashion: it learns, evaluates every sample of an uneven test set once, and
// logs what goddp plot draws.
func TestFashion(t *testing.T) {
	dir := t.TempDir()
	out := launch(t, dir, 2, "fashion", "--data", clothes(t, 400, 101), "--epochs", "12", "--batch", "20", "--lr", "0.01", "--log", "run.jsonl")
	if !regexp.MustCompile(`step 120/120  epoch 12  accuracy (1|0\.9\d*)\n`).MatchString(out) {
		t.Errorf("no accuracy above 0.9 in\n%s", out)
	}
	raw, err := os.ReadFile(filepath.Join(dir, "run.jsonl"))
	if err != nil || strings.Count(string(raw), `"accuracy"`) != 12 || strings.Count(string(raw), `"loss"`) != 2 {
		t.Errorf("%v, want 12 accuracies and 2 losses in\n%s", err, raw)
	}
}

// TestFashionResumes: from the checkpoint of step 100, where the later ones are lost, the same
// command comes to the same accuracies again.
func TestFashionResumes(t *testing.T) {
	dir := t.TempDir()
	args := []string{"--data", clothes(t, 400, 101), "--epochs", "12", "--batch", "20", "--lr", "0.01", "--resume", "run", "--save-every", "50"}
	lines := regexp.MustCompile(`step \d+/120  epoch \d+  accuracy \S+`)
	want := lines.FindAllString(launch(t, dir, 2, "fashion", args...), -1)
	for _, lost := range []string{"step-00000110", "step-00000120"} {
		if err := os.Rename(filepath.Join(dir, "run", lost), filepath.Join(dir, lost)); err != nil {
			t.Fatal(err)
		}
	}
	got := lines.FindAllString(launch(t, dir, 2, "fashion", args...), -1)
	if len(want) != 12 || !slices.Equal(got, want[9:]) {
		t.Errorf("%q, resumed %q, want the last 3", want, got)
	}
}

// TestFashionStops: SIGTERM costs no step. The checkpoint is of the step behind which the
// ranks stopped, and the same command goes on from there to what a run without the signal
// comes to.
func TestFashionStops(t *testing.T) {
	args := []string{"--data", clothes(t, 400, 101), "--epochs", "100", "--batch", "20", "--lr", "0.01", "--save-every", "2000", "--resume", "run"}
	lines := regexp.MustCompile(`step \d+/1000  epoch \d+  accuracy \S+`)
	want := lines.FindAllString(launch(t, t.TempDir(), 2, "fashion", args...), -1)

	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "golaunch"), append([]string{"--nproc-per-node", "2", filepath.Join(bin, "fashion")}, args...)...)
	cmd.Dir = dir
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var said []string
	signalled := false
	for scanner := bufio.NewScanner(out); scanner.Scan(); {
		said = append(said, scanner.Text())
		if lines.MatchString(scanner.Text()) && !signalled {
			signalled = true
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Error(err)
			}
		}
	}
	cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 143 {
		t.Fatalf("exit code %d, want 143\n%s", code, strings.Join(said, "\n"))
	}
	got := lines.FindAllString(launch(t, dir, 2, "fashion", args...), -1)
	if n := len(got); n == 0 || n == len(want) || !slices.Equal(got, want[len(want)-n:]) {
		t.Errorf("%q, stopped and resumed %q, want the last of these", want, got)
	}
}

// TestFashionIsRestarted: golaunch restarts a job one of whose processes is killed, and it
// goes on from its checkpoint to the same end.
func TestFashionIsRestarted(t *testing.T) {
	const kill = `
if [ "$RANK" = 1 ] && [ "$TORCHELASTIC_RESTART_COUNT" = 0 ]; then
	"$@" & while [ ! -e run/latest ]; do :; done
	kill -9 $!; exit 137
fi
exec "$@"`
	args := []string{filepath.Join(bin, "fashion"), "--data", clothes(t, 400, 101), "--epochs", "12", "--batch", "20", "--lr", "0.01", "--resume", "run", "--save-every", "7"}
	lines := regexp.MustCompile(`step 120/120  epoch 12  accuracy \S+`)
	killer := filepath.Join(t.TempDir(), "killer")
	if err := os.WriteFile(killer, []byte("#!/bin/sh"+kill), 0o700); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	got := run(t, dir, "golaunch", append([]string{"--nproc-per-node", "2", "--max-restarts", "1", killer}, args...)...)
	want := lines.FindString(launch(t, t.TempDir(), 2, "fashion", args[1:]...))
	if want == "" || lines.FindString(got) != want || !strings.Contains(got, "137") {
		t.Errorf("want %q, after a restart, in\n%s", want, got)
	}
}
