package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/nn"
)

// mutate calls try for each value in object and each other value that it sets it to, and restores object.
func mutate(object map[string]any, try func(what string)) {
	others := []any{nil, "x", "", 1.5, 0, -1, 1, 1 << 31, 1 << 40, 1 << 62, 1<<63 - 1, json.Number("9223372036854775808"), true, []any{}, []any{nil}, map[string]any{}}
	var visit func(path string, v any, set func(any))
	visit = func(path string, v any, set func(any)) {
		for _, other := range others {
			set(other)
			try(fmt.Sprintf("%s = %v", path, other))
		}
		if list, ok := v.([]any); ok && len(list) > 0 {
			set(append(slices.Clone(list), list[0]))
			try(path + " with its first element twice")
		}
		set(v)
		switch v := v.(type) {
		case map[string]any:
			for _, k := range slices.Sorted(maps.Keys(v)) {
				visit(path+"."+k, v[k], func(other any) { v[k] = other })
			}
		case []any:
			for i, inner := range v {
				visit(fmt.Sprintf("%s[%d]", path, i), inner, func(other any) { v[i] = other })
			}
		}
	}
	for _, k := range slices.Sorted(maps.Keys(object)) {
		visit(k, object[k], func(other any) { object[k] = other })
	}
}

// A manifest in which any value is another one, with a right checksum, is corrupt, does not fit, or gives the state
// that was saved. Nothing allocates more than a multiple of the files' size for it.
func TestManifestsOfAnyValues(t *testing.T) {
	dir := t.TempDir()
	want := savedBits(t, dir)
	path := filepath.Join(dir, "step-00000003")
	m, err := readManifest(disk{}, path)
	if err != nil {
		t.Fatal(err)
	}
	original, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	var object map[string]any
	d := json.NewDecoder(bytes.NewReader(original))
	d.UseNumber()
	if err := d.Decode(&object); err != nil {
		t.Fatal(err)
	}
	write := func(manifest []byte) {
		if err := os.WriteFile(filepath.Join(path, manifestName), seal(manifest), 0o666); err != nil {
			t.Error(err)
		}
	}
	most := 1<<20 + 64*(m.Bytes()+int64(len(original)))
	var intact []string
	try := func(what string, manifest any) {
		mutated, err := json.Marshal(manifest)
		if err != nil {
			t.Fatal(err)
		}
		write(mutated)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err = Verify(path)
		runtime.ReadMemStats(&after)
		if allocated := int64(after.TotalAlloc - before.TotalAlloc); allocated > most {
			t.Errorf("%s: %d bytes were allocated for files of %d", what, allocated, m.Bytes())
		}
		var corrupt *CorruptError
		var version *VersionError
		switch {
		case err == nil:
			intact = append(intact, string(mutated))
		case !errors.As(err, &corrupt) && !errors.As(err, &version):
			t.Errorf("%s: %v, want an error that says what is corrupt", what, err)
		}
	}
	for _, n := range []int{1 << 31, 1 << 40, 1 << 62, 1<<63 - 1} { // sizes that agree with each other, but not with the file
		for what, lie := range map[string]func(m *Manifest, f *File, tensor *Tensor){
			"header": func(_ *Manifest, f *File, _ *Tensor) { f.Bytes, f.Header = int64(n), int64(n) },
			"part": func(_ *Manifest, f *File, tensor *Tensor) {
				f.Bytes, tensor.Shape = int64(n), []int{n / 4}
				tensor.Parts = []Part{{Hi: n / 4, Offset: f.Header}}
			},
			"overflow": func(m *Manifest, _ *File, tensor *Tensor) {
				tensor.Shape, tensor.Parts = []int{n, n}, []Part{{Hi: n, Offset: 1<<63 - 1}}
			},
			"files": func(m *Manifest, f *File, _ *Tensor) {
				f.Bytes = int64(n)
				m.Files = append(m.Files, *f, *f)
			},
		} {
			lying, err := readManifest(disk{}, path)
			if err != nil {
				t.Fatal(err)
			}
			lie(lying, &lying.Files[0], &lying.Tensors[0])
			try(fmt.Sprint(what, " of ", n), lying)
			write(original)
		}
	}
	every := 11 // all of them take seconds
	if testkit.IsLong() {
		every = 1
	}
	n := 0
	mutate(object, func(what string) {
		if n++; n%every == 0 {
			try(what, object)
		}
	})
	if len(intact) == 0 {
		t.Errorf("none of %d manifests is intact, want those with another time", n)
	}
	commtest.OnGoroutines(t, 2, nil, func(pg *comm.ProcessGroup) error {
		r, ck, err := begin(pg, dir, zeros, 2, Options{})
		if err != nil {
			return err
		}
		for _, mutated := range intact {
			if pg.Rank() == 0 {
				write([]byte(mutated))
			}
			if err := pg.Barrier().Wait(t.Context()); err != nil {
				return err
			}
			for _, v := range nn.State(r.net) {
				clear(v.Tensor().Buf.Host())
			}
			if _, err := ck.Resume(t.Context(), r.state()); err == nil && !maps.EqualFunc(bits(r), want, bytes.Equal) {
				t.Errorf("rank %d has another state after %s", pg.Rank(), mutated)
			}
		}
		return ck.Close()
	})
}
