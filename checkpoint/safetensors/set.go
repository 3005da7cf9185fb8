package safetensors

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goddp/goddp/internal/files"
	"github.com/goddp/goddp/internal/magic"
)

// IndexSuffix is the end of an index's name. Hugging Face's libraries write an index for a model in several files.
const IndexSuffix = ".safetensors.index.json"

// Set is the open files of one model. Several goroutines may call its methods concurrently.
type Set struct {
	files  []*File
	fileOf map[string]int // the file of each tensor, by name
	names  []string       // the files' names
}

// OpenSet opens a safetensors file, or the files that an index names, and checks their headers. The error names the
// file and the tensor that is wrong.
func OpenSet(path string) (*Set, error) {
	s := &Set{fileOf: map[string]int{}, names: []string{filepath.Base(path)}}
	if !strings.HasSuffix(path, IndexSuffix) {
		return s, s.open(filepath.Dir(path))
	}
	fileOf, err := readIndex(path)
	if err != nil {
		return nil, fmt.Errorf("safetensors: %s: %w", path, err)
	}
	s.names = slices.Compact(slices.Sorted(maps.Values(fileOf)))
	if err := s.open(filepath.Dir(path)); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("safetensors: %s: a file that the index names is missing: %w", path, err)
		}
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(fileOf)) {
		if _, ok := s.fileOf[name]; !ok {
			return nil, errors.Join(fmt.Errorf("safetensors: %s: the index says that tensor %q is in %s, but that file lacks it", path, name, fileOf[name]), s.Close())
		}
	}
	return s, nil
}

// open opens the files in dir.
func (s *Set) open(dir string) error {
	for i, file := range s.names {
		path := filepath.Join(dir, file)
		f, err := Open(path)
		if err != nil {
			return errors.Join(err, s.Close())
		}
		s.files = append(s.files, f)
		for name := range f.tensors {
			if _, taken := s.fileOf[name]; taken {
				return errors.Join(fmt.Errorf("safetensors: %s: tensor %q is also in another file", path, name), s.Close())
			}
			s.fileOf[name] = i
		}
	}
	return nil
}

// readIndex reads an index, and returns the name of the file that contains each tensor.
func readIndex(path string) (fileOf map[string]string, err error) {
	data, err := files.Read(path, MaxHeader)
	if err != nil {
		return nil, err
	}
	var index struct {
		WeightMap map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(data, &index); err != nil {
		if format := magic.Describe(data); format != "" {
			return nil, fmt.Errorf("want an index of safetensors files, but it is %s: %w", format, err)
		}
		return nil, err
	}
	for _, file := range index.WeightMap {
		if file == "" || file != filepath.Base(file) {
			return nil, fmt.Errorf("it names the file %q, want a file in the same folder", file)
		}
	}
	if len(index.WeightMap) == 0 {
		return nil, errors.New(`it has no "weight_map", which names the file of each tensor`)
	}
	return index.WeightMap, nil
}

// Tensors returns all tensors by name. The map belongs to the caller.
func (s *Set) Tensors() map[string]Tensor {
	all := map[string]Tensor{}
	for _, f := range s.files {
		maps.Copy(all, f.tensors)
	}
	return all
}

// FileOf returns the name of the file that contains a tensor, without its folder, or "".
func (s *Set) FileOf(name string) string {
	if i, ok := s.fileOf[name]; ok {
		return s.names[i]
	}
	return ""
}

// Metadata returns the metadata of the last file.
func (s *Set) Metadata() map[string]string { return s.files[len(s.files)-1].Metadata() }

// Read reads the elements of a tensor.
func (s *Set) Read(name string) ([]byte, error) {
	i, ok := s.fileOf[name]
	if !ok {
		return nil, fmt.Errorf("safetensors: there is no tensor %q", name)
	}
	return s.files[i].Read(name)
}

// Close closes the files.
func (s *Set) Close() error {
	var errs []error
	for _, f := range s.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}
