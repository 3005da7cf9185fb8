package examples

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
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

// TestFashionLearns checks the accuracy and the log. The test set's 101 samples do not divide evenly among
// the ranks.
func TestFashionLearns(t *testing.T) {
	dir := t.TempDir()
	out := launch(t, dir, 2, "fashion", "--data", clothes(t, 400, 101), "--epochs", "12", "--batch", "20", "--lr", "0.01", "--log", "run.jsonl")
	if !regexp.MustCompile(`step 120/120  epoch 12  accuracy (1|0\.9\d*)\n`).MatchString(out) {
		t.Errorf("no accuracy above 0.9 in\n%s", out)
	}
	raw, err := os.ReadFile(filepath.Join(dir, "run.jsonl"))
	if err != nil || strings.Count(string(raw), `"accuracy"`) != 12 || strings.Count(string(raw), `"loss"`) != 3 {
		t.Errorf("%v, want 12 accuracies and 3 losses in\n%s", err, raw)
	}
}

// TestFashionReportsInvalidData checks that golaunch reports each mistake in the data in one line.
func TestFashionReportsInvalidData(t *testing.T) {
	for want, damage := range map[string]func(dir string) error{
		"data: DIR/train-images-idx3-ubyte: at byte 20000: truncated: 11376 bytes are missing": func(dir string) error {
			return os.Truncate(filepath.Join(dir, "train-images-idx3-ubyte"), 20000)
		},
		"data: DIR/train-labels-idx1-ubyte: sample 37 has label 10, want one below 10": func(dir string) error {
			path := filepath.Join(dir, "train-labels-idx1-ubyte")
			labels, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			labels[8+37] = 10
			return os.WriteFile(path, labels, 0o600)
		},
		"data: neither train-images-idx3-ubyte nor train-images-idx3-ubyte.gz is in DIR: file does not exist: install Debian's package dataset-fashion-mnist, or give --data a folder with the four files": func(dir string) error {
			return os.Remove(filepath.Join(dir, "train-images-idx3-ubyte"))
		},
		"data: fewer samples (1) than ranks (2)": func(dir string) error {
			for file, content := range map[string][]byte{
				"train-images-idx3-ubyte": {0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 9},
				"train-labels-idx1-ubyte": {0, 0, 8, 1, 0, 0, 0, 1, 9},
			} {
				if err := os.WriteFile(filepath.Join(dir, file), content, 0o600); err != nil {
					return err
				}
			}
			return nil
		},
		"panic: layer 1: Linear: shapes [10 1024] and [256 784] do not fit (parameter 1.weight)": func(dir string) error {
			images := []byte{0, 0, 8, 3, 0, 0, 0, 40, 0, 0, 0, 32, 0, 0, 0, 32}
			return os.WriteFile(filepath.Join(dir, "train-images-idx3-ubyte"), append(images, make([]byte, 40*32*32)...), 0o600)
		},
	} {
		dir := clothes(t, 40, 5)
		if err := damage(dir); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "golaunch"), "--nproc-per-node", "2", filepath.Join(bin, "fashion"), "--batch", "10", "--data", dir)
		out, err := cmd.CombinedOutput()
		line := "\n  error     : " + strings.ReplaceAll(want, "DIR", dir) + "\n"
		if err == nil || strings.Count(string(out), line) != 1 {
			t.Errorf("%v, no line %q in\n%s", err, line, out)
		}
	}
}
