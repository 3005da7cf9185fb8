package examples

import (
	"encoding/binary"
	"os"
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
