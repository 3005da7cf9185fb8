package dl

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// Libraries are searched for in the right places and order. The test's files exist but cannot be
// loaded.
func TestSearchOrder(t *testing.T) {
	root := t.TempDir()
	place := func(dir string) string {
		file := filepath.Join(root, dir, "libnothing.so.1")
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte("no library"), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	home := place("toolkit/lib64")
	wheel := place("venv/lib/python3.12/site-packages/nvidia/cu13/lib")
	t.Setenv("CUDA_HOME", filepath.Join(root, "toolkit"))
	t.Setenv("VIRTUAL_ENV", filepath.Join(root, "venv"))
	_, err := Open(NVIDIA("nothing", "GODDP_LIBNOTHING", "libnothing.so.1"))
	var missing *NotFoundError
	if !errors.As(err, &missing) {
		t.Fatalf("got %v", err)
	}
	var tried []string
	for _, p := range missing.Tried {
		tried = append(tried, p.Place)
	}
	first, second, third := slices.Index(tried, "libnothing.so.1"), slices.Index(tried, home), slices.Index(tried, wheel)
	if first != 0 || second < first || third < second {
		t.Errorf("tried %q, want the loader's path, %s and %s in this order", tried, home, wheel)
	}
	t.Setenv("GODDP_LIBNOTHING", home)
	if _, err := Open(NVIDIA("nothing", "GODDP_LIBNOTHING", "libnothing.so.1")); !errors.As(err, &missing) || len(missing.Tried) != 1 {
		t.Errorf("with a file named: got %v", err)
	}
}
