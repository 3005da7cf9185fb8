package checkpoint

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goddp/goddp/checkpoint/safetensors"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/internal/commtest"
)

// Verify finds a flipped bit anywhere in a checkpoint and names the tensor. Resume loads the
// checkpoint before it.
func TestEveryFlippedBitIsFound(t *testing.T) {
	dir := t.TempDir()
	commtest.OnGoroutines(t, 2, nil, func(pg *comm.ProcessGroup) error {
		for _, steps := range []int{2, 3} {
			if _, err := saved(t.Context(), pg, dir, zeros, steps, Options{}); err != nil {
				return err
			}
		}
		return nil
	})
	path := filepath.Join(dir, "step-00000003")
	names := []string{manifestName, shareName(0, 2), shareName(1, 2)}
	files := map[string][]byte{}
	total := 0
	for _, name := range names {
		data, err := os.ReadFile(filepath.Join(path, name))
		if err != nil {
			t.Fatal(err)
		}
		files[name] = data
		total += len(data)
	}
	random := rand.New(rand.NewPCG(1, 2))
	places := map[string]int{}
	for i := range 1000 {
		at := random.IntN(total)
		name := ""
		for _, name = range names {
			if at < len(files[name]) {
				break
			}
			at -= len(files[name])
		}
		data := slices.Clone(files[name])
		data[at] ^= 1 << random.IntN(8)
		if err := os.WriteFile(filepath.Join(path, name), data, 0o666); err != nil {
			t.Fatal(err)
		}
		want := manifestName
		if name != manifestName {
			want = owner(t, filepath.Join(path, name), files[name], int64(at))
		}
		err := Verify(path)
		var c *CorruptError
		if !errors.As(err, &c) || !strings.Contains(err.Error(), want) {
			t.Fatalf("byte %d of %s is of %s: %v", at, name, want, err)
		}
		places[strings.SplitN(want, "/", 2)[0]]++
		if i%100 == 0 {
			commtest.OnGoroutines(t, 2, nil, func(pg *comm.ProcessGroup) error {
				_, err := resumed(t.Context(), pg, dir, plain, 2)
				return err
			})
		}
		if err := os.WriteFile(filepath.Join(path, name), files[name], 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if err := Verify(path); err != nil {
		t.Error(err)
	}
	t.Logf("flips by place: %v", places)
}

// owner returns the tensor that contains a byte of a file, or the header.
func owner(t *testing.T, path string, content []byte, at int64) string {
	f, err := safetensors.NewFile(strings.NewReader(string(content)), int64(len(content)))
	if err != nil {
		t.Fatal(err)
	}
	for name, tensor := range f.Tensors() {
		if tensor.From <= at && at < tensor.To {
			return name
		}
	}
	return "header of " + filepath.Base(path)
}
