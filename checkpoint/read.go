package checkpoint

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// reader reads the files of a checkpoint.
type reader struct {
	fs       filesystem
	path     string
	manifest *Manifest
	files    map[int]source
}

// openReader opens the checkpoint in a folder. The caller closes the reader.
func openReader(fs filesystem, path string) (*reader, error) {
	m, err := readManifest(fs, path)
	if err != nil {
		return nil, err
	}
	return &reader{fs, path, m, map[int]source{}}, nil
}

func (r *reader) close() error {
	var err error
	for _, f := range r.files {
		err = errors.Join(err, f.Close())
	}
	return err
}

// file opens a file and checks its size.
func (r *reader) file(i int) (source, error) {
	if f := r.files[i]; f != nil {
		return f, nil
	}
	want := r.manifest.Files[i]
	f, err := open(r.fs, filepath.Join(r.path, want.Name))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, corrupt(r.path, "%s is missing", want.Name)
	case isIO(err):
		return nil, fmt.Errorf("checkpoint: %w", err)
	case err != nil:
		return nil, corrupt(r.path, "%v", err)
	}
	info, err := f.Stat()
	if err == nil && info.Size() != want.Bytes {
		err = corrupt(r.path, "%s has %d bytes, want %d", want.Name, info.Size(), want.Bytes)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	r.files[i] = f
	return f, nil
}

// read reads n bytes of a file at an offset. what names the data in errors. Before it allocates memory, read
// checks that the file has the size that the manifest states.
func (r *reader) read(what string, i int, offset, n int64) (data []byte, err error) {
	err = retried(func() error {
		f, err := r.file(i)
		if err != nil {
			return err
		}
		data = make([]byte, n)
		if _, err = f.ReadAt(data, offset); errors.Is(err, syscall.ESTALE) {
			delete(r.files, i)
			return errors.Join(err, f.Close())
		}
		if err != nil {
			return corrupt(r.path, "reading %s: %v", what, err)
		}
		return nil
	})
	return data, err
}

// part reads a part of a tensor and compares its checksum.
func (r *reader) part(t *Tensor, p Part) ([]byte, error) {
	data, err := r.read(t.String(), p.File, p.Offset, t.size(p.Hi-p.Lo))
	if err != nil {
		return nil, err
	}
	if got := sum(data); got != p.CRC {
		return nil, corrupt(r.path, "%v: elements %d to %d in %s have the checksum %v, want %v",
			t, p.Lo, p.Hi, r.manifest.Files[p.File].Name, got, p.CRC)
	}
	return data, nil
}

// elements returns the elements lo to hi-1 of a tensor. It reads and checks each part that contains any of these
// elements.
func (r *reader) elements(t *Tensor, lo, hi int) ([]byte, error) {
	var out []byte
	for _, p := range t.Parts {
		from, to := max(p.Lo, lo), min(p.Hi, hi)
		if from >= to {
			continue
		}
		data, err := r.part(t, p)
		if err != nil {
			return nil, err
		}
		if from == lo && to == hi {
			return data[t.size(from-p.Lo):t.size(to-p.Lo)], nil
		}
		if out == nil {
			out = make([]byte, t.size(hi-lo))
		}
		copy(out[t.size(from-lo):], data[t.size(from-p.Lo):t.size(to-p.Lo)])
	}
	return out, nil
}

// header compares the checksum of the bytes before the first tensor of a file.
func (r *reader) header(i int) error {
	want := r.manifest.Files[i]
	data, err := r.read("the header of "+want.Name, i, 0, want.Header)
	if err != nil {
		return err
	}
	if got := sum(data); got != want.CRC {
		return corrupt(r.path, "the header of %s, which names its tensors, has the checksum %v, want %v", want.Name, got, want.CRC)
	}
	return nil
}

// verify checks the tensors and headers that are assigned to rank. If some are corrupt, it returns a
// [*CorruptError] with all problems. Any other error is returned at once.
func (r *reader) verify(rank, size int) error {
	type job struct {
		bytes int64
		check func() error
	}
	var jobs []job
	for i, f := range r.manifest.Files {
		jobs = append(jobs, job{f.Header, func() error { return r.header(i) }})
	}
	for i := range r.manifest.Tensors {
		t := &r.manifest.Tensors[i]
		for _, p := range t.Parts {
			jobs = append(jobs, job{t.size(p.Hi - p.Lo), func() error {
				_, err := r.part(t, p)
				return err
			}})
		}
	}
	slices.SortStableFunc(jobs, func(a, b job) int { return cmp.Compare(b.bytes, a.bytes) })
	var problems []string
	for i, j := range jobs {
		if i%size != rank {
			continue
		}
		err := j.check()
		var c *CorruptError
		switch {
		case errors.As(err, &c):
			problems = append(problems, strings.Join(c.Problems, "; "))
		case err != nil:
			return err
		}
	}
	if len(problems) > 0 {
		slices.Sort(problems)
		return &CorruptError{r.path, slices.Compact(problems)} // a missing file is reported once, not once for each part
	}
	return nil
}

// Verify reads the checkpoint in a folder and compares all checksums. If one differs it returns a
// [*CorruptError] that names the tensors.
func Verify(path string) error { return verify(disk{}, path) }

func verify(fs filesystem, path string) error {
	r, err := openReader(fs, path)
	if err != nil {
		return err
	}
	return errors.Join(r.verify(0, 1), r.close())
}
