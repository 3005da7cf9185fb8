package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/checkpoint/safetensors"
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

// weightFiles returns the names of the indices in a folder, or, if there are none, of the safetensors files.
func weightFiles(dir string) []string {
	entries, _ := os.ReadDir(dir) // if the folder cannot be read, the caller returns an error later
	for _, suffix := range []string{safetensors.IndexSuffix, ".safetensors"} {
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
	set, err := safetensors.OpenSet(path)
	if err != nil {
		return nil, err
	}
	w := &weights{tensors: map[string]*Tensor{}, metadata: set.Metadata(), read: set.Read, close: set.Close}
	for name, t := range set.Tensors() {
		w.tensors[name] = &Tensor{Kind: modelKind, Name: name, DType: t.DType, Shape: t.Shape}
	}
	return w, nil
}
