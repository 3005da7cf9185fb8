package examples

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strconv"
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
