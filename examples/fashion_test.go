package examples

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/goddp/goddp/internal/testkit"
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
	testkit.Long(t)
	dir := t.TempDir()
	launch(t, dir, 2, "fashion", "--data", clothes(t, 400, 101), "--epochs", "12", "--batch", "20", "--lr", "0.01", "--log", "run.jsonl")
	logged := outcome(t, dir)
	if last, err := strconv.ParseFloat(logged["accuracy of step 120"], 64); err != nil || last < 0.9 || len(logged) != 12+3 {
		t.Errorf("%v, want 12 accuracies, the last of them above 0.9, and 3 losses in %v", err, logged)
	}
}

// TestFashionReportsInvalidData checks that golaunch reports a mistake in the data in one line, whether it is an error or a panic.
func TestFashionReportsInvalidData(t *testing.T) {
	testkit.Long(t)
	dir := clothes(t, 40, 5)
	images, labels := filepath.Join(dir, "train-images-idx3-ubyte"), filepath.Join(dir, "train-labels-idx1-ubyte")
	for _, c := range []struct{ file, content, want string }{
		{images, "\x00\x00\x08\x03\x00\x00\x00\x28\x00\x00\x00\x20\x00\x00\x00\x20" + strings.Repeat("\x00", 40*32*32),
			"panic: layer 1: Linear: shapes [10 1024] and [256 784] do not fit (parameter 1.weight)"},
		{labels, "\x00\x00\x08\x01\x00\x00\x00\x28" + strings.Repeat("\x00", 37) + "\x0a\x00\x00",
			"data: " + labels + ": sample 37 has label 10, want one below 10"},
	} {
		if err := os.WriteFile(c.file, []byte(c.content), 0o600); err != nil {
			t.Fatal(err)
		}
		r := testkit.Run(t, job(t, dir, 2, filepath.Join(build(t), "fashion"), "--batch", "10", "--data", dir))
		if line := "\n  error     : " + c.want + "\n"; r.Code == 0 || strings.Count(r.Stderr, line) != 1 {
			t.Errorf("exit code %d, no line %q in\n%s", r.Code, line, r.Stderr)
		}
	}
}
