package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goddp/goddp/checkpoint/safetensors"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/commtest"
)

// Verify finds a flipped bit anywhere in a checkpoint and names the tensor. Resume loads the
// checkpoint before it, and returns an error if that is corrupt too.
func TestEveryFlippedBitIsFound(t *testing.T) {
	dir := t.TempDir()
	commtest.OnGoroutines(t, 2, nil, func(pg *comm.ProcessGroup) error {
		for _, steps := range []int{2, 3} {
			if _, err := saved(t.Context(), pg, dir, zeros, steps); err != nil {
				return err
			}
		}
		return nil
	})
	path := filepath.Join(dir, "step-00000003")
	files := map[string][]byte{}
	var bytesOf []string // the file of each byte
	for _, name := range []string{manifestName, shareName(0, 2), shareName(1, 2)} {
		data, err := os.ReadFile(filepath.Join(path, name))
		if err != nil {
			t.Fatal(err)
		}
		files[name] = data
		bytesOf = append(bytesOf, slices.Repeat([]string{name}, len(data))...)
	}
	replace := func(name string, data []byte) {
		if err := os.WriteFile(filepath.Join(path, name), data, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	flips := 100
	if testkit.IsLong() {
		flips = 1000
	}
	random := rand.New(rand.NewPCG(1, 2))
	for i := range flips {
		n := random.IntN(len(bytesOf))
		name := bytesOf[n]
		at := n - slices.Index(bytesOf, name)
		data := slices.Clone(files[name])
		data[at] ^= 1 << random.IntN(8)
		replace(name, data)
		want := manifestName
		if name != manifestName {
			want = owner(t, name, files[name], int64(at))
		}
		var c *CorruptError
		if err := Verify(path); !errors.As(err, &c) || !strings.Contains(err.Error(), want) {
			t.Fatalf("byte %d of %s is of %s: %v", at, name, want, err)
		}
		if i%50 == 0 {
			commtest.OnGoroutines(t, 2, nil, func(pg *comm.ProcessGroup) error {
				_, err := resumed(t.Context(), pg, dir, plain, 2)
				return err
			})
		}
		replace(name, files[name])
	}
	if err := Verify(path); err != nil {
		t.Error(err)
	}
	for _, step := range []string{path, filepath.Join(dir, "step-00000002")} {
		if err := os.Truncate(filepath.Join(step, shareName(1, 2)), 100); err != nil {
			t.Fatal(err)
		}
	}
	commtest.OnGoroutines(t, 2, nil, func(pg *comm.ProcessGroup) error {
		if step, err := resumed(t.Context(), pg, dir, plain, 2); err == nil {
			return fmt.Errorf("a corrupt checkpoint was loaded: %v", step)
		}
		return nil
	})
}

// owner returns the tensor that contains a byte of a file, or the header.
func owner(t *testing.T, name string, content []byte, at int64) string {
	f, err := safetensors.NewFile(bytes.NewReader(content), int64(len(content)))
	if err != nil {
		t.Fatal(err)
	}
	for name, tensor := range f.Tensors() {
		if tensor.From <= at && at < tensor.To {
			return name
		}
	}
	return "header of " + name
}
