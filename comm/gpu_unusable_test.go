package comm

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/goddp/goddp/device/cuda"
)

// A GPU is unusable if the host has its device file, and CUDA does not say that there is none.
func TestUnusableGPU(t *testing.T) {
	dev := t.TempDir()
	missing := errors.New("libcuda was not found")
	if isUnusable(missing, dev) {
		t.Error("a host without device files has a GPU that cannot be used")
	}
	if err := os.WriteFile(filepath.Join(dev, "nvidia0"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if !isUnusable(missing, dev) {
		t.Error("a GPU whose library is missing is not noticed")
	}
	if isUnusable(&cuda.Error{Code: 100}, dev) {
		t.Error("a GPU that CUDA_VISIBLE_DEVICES hides is unusable")
	}
}
