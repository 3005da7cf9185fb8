package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/checkpoint/internal/magic"
	"github.com/goddp/goddp/checkpoint/safetensors"
	"github.com/goddp/goddp/internal/files"
	"github.com/goddp/goddp/nn"
)

// weights holds the tensors of safetensors files, or the model's tensors of a checkpoint.
type weights struct {
	tensors  map[string]*Tensor
	metadata map[string]string // the metadata of the last safetensors file
	read     func(name string) ([]byte, error)
	close    func() error
}

// namesOf returns, for each variable of a model, its names in w. unexpected holds the names in w that the model lacks.
func (w *weights) namesOf(m nn.Model) (names map[*autograd.Variable][]string, unexpected []string) {
	names, all := map[*autograd.Variable][]string{}, nn.AllNames(m)
	for _, name := range slices.Sorted(maps.Keys(w.tensors)) {
		if v := all[name]; v != nil {
			names[v] = append(names[v], name)
		} else {
			unexpected = append(unexpected, name)
		}
	}
	return names, unexpected
}

// readTied reads a tensor that w has under several names. It returns an error if their elements differ.
func (w *weights) readTied(names []string) ([]byte, error) {
	data, err := w.read(names[0])
	for _, other := range names[1:] {
		if err != nil {
			return nil, err
		}
		var again []byte
		again, err = w.read(other)
		if a, b := w.tensors[names[0]].layout(), w.tensors[other].layout(); err == nil && (a != b || !bytes.Equal(data, again)) {
			err = fmt.Errorf("the model shares one tensor between %s (%s) and %s (%s), but the file has different values for them", names[0], a, other, b)
		}
	}
	return data, err
}

// openWeights opens what [LoadWeights] loads.
func openWeights(path string) (*weights, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	if !info.IsDir() {
		return openFile(path)
	}
	latest, err := Latest(path)
	if files := weightFiles(path); errors.Is(err, errNoCheckpoint) && len(files) == 1 {
		return openFile(filepath.Join(path, files[0]))
	}
	if err != nil {
		return nil, err
	}
	r, err := openReader(disk{}, latest)
	if err != nil {
		return nil, err
	}
	return r.weights(), nil
}

// weights returns the model's tensors of a checkpoint.
func (r *reader) weights() *weights {
	all := r.manifest.tensors(modelKind)
	return &weights{
		tensors: all,
		read:    func(name string) ([]byte, error) { return r.elements(all[name], 0, all[name].len()) },
		close:   r.close,
	}
}

// indexSuffix is the end of an index's name. Hugging Face's libraries write an index for a model in several files.
const indexSuffix = ".safetensors.index.json"

// weightFiles returns the names of the indices in a folder, or, if there are none, of the safetensors files.
func weightFiles(dir string) []string {
	entries, _ := os.ReadDir(dir) // if the folder cannot be read, the caller returns an error later
	for _, suffix := range []string{indexSuffix, ".safetensors"} {
		var names []string
		for _, e := range entries {
			if strings.HasSuffix(e.Name(), suffix) {
				names = append(names, e.Name())
			}
		}
		if names != nil {
			return names
		}
	}
	return nil
}

// openFile opens a safetensors file, or the files of an index.
func openFile(path string) (*weights, error) {
	if !strings.HasSuffix(path, indexSuffix) {
		return openFiles(path)
	}
	fileOf, err := readIndex(path)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %s: %w", path, err)
	}
	var files []string
	for _, name := range slices.Compact(slices.Sorted(maps.Values(fileOf))) {
		files = append(files, filepath.Join(filepath.Dir(path), name))
	}
	w, err := openFiles(files...)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(fileOf)) {
		if w.tensors[name] == nil {
			return nil, errors.Join(fmt.Errorf("checkpoint: %s: the index says that tensor %q is in %s, but that file lacks it", path, name, fileOf[name]), w.close())
		}
	}
	return w, nil
}

// readIndex reads an index, and returns the name of the file that contains each tensor.
func readIndex(path string) (fileOf map[string]string, err error) {
	data, err := files.Read(path, safetensors.MaxHeader)
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

// openFiles opens safetensors files.
func openFiles(paths ...string) (*weights, error) {
	var files []*safetensors.File
	fileOf := map[string]*safetensors.File{} // by the tensor's name
	w := &weights{
		tensors: map[string]*Tensor{},
		read:    func(name string) ([]byte, error) { return fileOf[name].Read(name) },
		close: func() error {
			var errs []error
			for _, f := range files {
				errs = append(errs, f.Close())
			}
			return errors.Join(errs...)
		},
	}
	for _, path := range paths {
		f, err := safetensors.Open(path)
		if err != nil {
			return nil, errors.Join(err, w.close())
		}
		files = append(files, f)
		w.metadata = f.Metadata()
		for name, t := range f.Tensors() {
			if fileOf[name] != nil {
				return nil, errors.Join(fmt.Errorf("checkpoint: %s: tensor %q is also in another file", path, name), w.close())
			}
			fileOf[name] = f
			w.tensors[name] = &Tensor{Kind: modelKind, Name: name, DType: t.DType, Shape: t.Shape}
		}
	}
	return w, nil
}
