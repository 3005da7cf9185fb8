package checkpoint

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/goddp/goddp/checkpoint/safetensors"
	"github.com/goddp/goddp/internal/files"
	"github.com/goddp/goddp/nn"
)

// Report names the weights that were loaded into a model, and those that were not.
type Report struct {
	Loaded     []string
	Missing    []string           // the model's weights that the file lacks; they are unchanged
	Unexpected []string           // the file's tensors that the model lacks
	Mismatched []nn.StateMismatch // the weights with another shape, or with integers instead of floating-point numbers; they are unchanged
}

// Complete returns an [*nn.StateError] unless each of the model's weights was loaded and the file has no
// other tensors.
func (r *Report) Complete() error {
	if len(r.Missing)+len(r.Unexpected)+len(r.Mismatched) == 0 {
		return nil
	}
	return &nn.StateError{Missing: r.Missing, Unexpected: r.Unexpected, Mismatched: r.Mismatched}
}

// LoadWeights sets each weight of a model to the saved weight with the same name, and reports which weights did
// not fit. path is one of these:
//   - a checkpoint, or a folder of checkpoints, of which LoadWeights takes the latest
//   - a safetensors file
//   - the index of a model in several safetensors files (model.safetensors.index.json)
//   - a folder with one such file or index
//
// Floating-point numbers are converted to the model's type. The model must be on a device ([nn.Place]). Each
// rank calls LoadWeights and reads the file itself. Of parameters that are divided among the ranks ([nn.Parameter.Part])
// it sets its parts. If LoadWeights returns an error, some weights may have been
// loaded.
//
// The file may have a tied weight under one or more of its names ([nn.AllNames]). It is an error if the elements
// under two of these names differ.
func LoadWeights(path string, m nn.Model) (*Report, error) {
	w, err := openWeights(path)
	if err != nil {
		return nil, err
	}
	defer w.close()
	mine, parts, report := nn.State(m), partsOf(m), &Report{}
	names, unexpected := w.namesOf(m)
	report.Unexpected = unexpected
	for _, name := range slices.Sorted(maps.Keys(mine)) {
		v := mine[name]
		if names[v] == nil {
			report.Missing = append(report.Missing, name)
			continue
		}
		t := w.tensors[names[v][0]]
		dt := t.DType.Device()
		if !v.Shape().Equal(t.Shape) || dt != v.DType() && !(dt.IsFloat() && v.DType().IsFloat()) {
			report.Mismatched = append(report.Mismatched, nn.StateMismatch{
				Name: name, State: fmt.Sprint(t.DType, t.Shape), Module: fmt.Sprint(v.DType(), v.Shape()),
			})
			continue
		}
		data, err := w.readTied(names[v])
		if b := parts[v]; err == nil && b != nil {
			span, _ := b.Span()
			err = setVariable(b.Var(), data[span.Lo*dt.Size():span.Hi*dt.Size()], dt)
			v.BumpVersion() // b is a part of it
		} else if err == nil {
			err = setVariable(v, data, dt)
		}
		if err != nil {
			return nil, fmt.Errorf("checkpoint: loading %s: %w", name, err)
		}
		report.Loaded = append(report.Loaded, name)
	}
	return report, nil
}

// errNoCheckpoint is the error of [Latest] for a folder without checkpoints.
var errNoCheckpoint = errors.New("there is no checkpoint")

// Latest returns path if it is a checkpoint. If path is a folder of checkpoints, Latest returns the
// latest one.
func Latest(path string) (string, error) {
	if _, err := os.Stat(filepath.Join(path, manifestName)); err == nil || folderName.MatchString(filepath.Base(path)) {
		return path, nil
	}
	all, err := candidates(path)
	if err != nil {
		return "", err
	}
	if len(all) > 0 {
		return all[0].Path, nil
	}
	err = fmt.Errorf("checkpoint: %w in %s", errNoCheckpoint, path)
	if files := weightFiles(path); files != nil {
		err = fmt.Errorf("%w; it holds files of weights: pass one of the files %q instead", err, files)
	}
	return "", err
}

// manifestKey is the key in a file's metadata under which Export stores the manifest if it exports
// everything.
const manifestKey = "goddp.manifest"

// Export writes the weights of a checkpoint to one safetensors file, under their own names. If path
// is a folder of checkpoints, Export takes the latest one. If everything is true, it also writes the rest
// of the checkpoint, so that [Import] can make an equal checkpoint; the weights are then named
// "model/NAME". Export replaces an existing file when the new one is complete.
func Export(path, file string, everything bool) error {
	path, err := Latest(path)
	if err != nil {
		return err
	}
	if info, err := os.Stat(file); err == nil && info.IsDir() {
		return fmt.Errorf("checkpoint: exporting %s: %s is a folder, want the name of a file", path, file)
	}
	r, err := openReader(disk{}, path)
	if err != nil {
		return err
	}
	defer r.close()
	sources := map[string]safetensors.Source{}
	for i := range r.manifest.Tensors {
		t := &r.manifest.Tensors[i]
		name := key(t.Kind, t.Name)
		switch {
		case everything:
		case t.Kind == modelKind:
			name = t.Name
		default:
			continue
		}
		sources[name] = safetensors.Source{Format: t.DType, Shape: t.Shape, Write: func(w io.Writer) error {
			data, err := r.elements(t, 0, t.len())
			if err == nil {
				_, err = w.Write(data)
			}
			return err
		}}
	}
	metadata := map[string]string{"format": "pt"}
	if everything {
		about := *r.manifest
		about.Files, about.Tensors = nil, nil
		data, err := json.Marshal(about)
		if err != nil {
			return err
		}
		metadata[manifestKey] = string(data)
	}
	if err := writeWeights(file, sources, metadata); err != nil {
		return fmt.Errorf("checkpoint: exporting %s: %w", path, err)
	}
	return nil
}

// SaveWeights writes the weights of a model, its parameters and buffers, to one safetensors file,
// under their own names. [LoadWeights], PyTorch and Hugging Face can load the file. One rank calls
// SaveWeights. It waits until the device has computed the weights, or until ctx ends, and replaces
// an existing file when the new one is complete. If the parameters are divided among the ranks, SaveWeights is called
// within zero.Model.OnRank.
func SaveWeights(ctx context.Context, file string, m nn.Model) error {
	sources := map[string]safetensors.Source{}
	for name, v := range nn.State(m) {
		sources[name] = safetensors.Source{DType: v.DType(), Shape: v.Shape(), Write: func(w io.Writer) error {
			data, err := v.Bytes(ctx)
			if err == nil {
				_, err = w.Write(data)
			}
			return err
		}}
	}
	if err := writeWeights(file, sources, map[string]string{"format": "pt"}); err != nil {
		return fmt.Errorf("checkpoint: saving weights: %w", err)
	}
	return nil
}

// writeWeights replaces a safetensors file when the new one is complete. A pipe or a device, such as /dev/stdout,
// is not replaced but written to.
func writeWeights(file string, tensors map[string]safetensors.Source, metadata map[string]string) error {
	if info, err := os.Stat(file); err == nil && !info.Mode().IsRegular() {
		return files.Write(file, 0o666, tensorFile(tensors, metadata))
	}
	temp := file + ".tmp-" + rand.Text()
	err := replace(disk{}, file, temp, tensorFile(tensors, metadata))
	if err != nil {
		os.Remove(temp)
		if failed := (*os.PathError)(nil); errors.As(err, &failed) && failed.Path == temp {
			failed.Path = file // the user does not know the other
		}
	}
	return err
}

// Import converts a safetensors file to a checkpoint, the latest one in the folder dir, and returns the
// checkpoint's path. It makes the folder if necessary. If the file has only weights, the checkpoint is of
// step 0: [Manager.Resume] sets the model's weights and leaves the rest of the state unchanged.
func Import(file, dir string) (string, error) {
	path, err := importFile(file, dir)
	if err != nil {
		return "", fmt.Errorf("checkpoint: importing %s: %w", file, err)
	}
	return path, nil
}

func importFile(file, dir string) (string, error) {
	w, err := openFile(file)
	if err != nil {
		return "", err
	}
	defer w.close()
	m := &Manifest{
		Format: formatName, Version: Version, Time: time.Now().UTC(), WorldSize: 1,
		RankValues: []map[string]json.RawMessage{{}}, WeightsOnly: true,
	}
	if about := w.metadata[manifestKey]; about != "" {
		m.WeightsOnly = false
		if err := json.Unmarshal([]byte(about), m); err != nil {
			return "", fmt.Errorf("%s: %w", manifestKey, err)
		}
		if m.Version > Version {
			return "", &VersionError{file, m.Version}
		}
		m.Format, m.Version, m.Files, m.Tensors = formatName, Version, nil, nil
		for k, t := range w.tensors {
			t.Kind, t.Name, _ = strings.Cut(k, "/")
		}
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return "", err
	}
	lock, err := lockFolder(dir, newHolder(rand.Text()), func(holder) time.Duration { return 0 })
	if err != nil {
		return "", err
	}
	defer lock.release()
	fs, temp := disk{}, filepath.Join(dir, tempPrefix+"import-"+rand.Text())
	if err := fs.Mkdir(temp); err != nil {
		return "", err
	}
	defer fs.RemoveAll(temp) // does nothing once publish has renamed the folder
	if err := writeWhole(fs, filepath.Join(temp, shareName(0, 1)), w, m); err != nil {
		return "", err
	}
	if m.Number, err = nextNumber(dir); err != nil {
		return "", err
	}
	name, err := newName(dir, m.Step)
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, name), publish(fs, dir, name, temp, m)
}

// writeWhole writes the tensors of w to the only file of a checkpoint, and adds them to the manifest.
func writeWhole(fs filesystem, path string, w *weights, m *Manifest) error {
	sources := map[string]safetensors.Source{}
	for k, t := range w.tensors {
		sources[key(t.Kind, t.Name)] = safetensors.Source{Format: t.DType, Shape: t.Shape, Write: func(to io.Writer) error {
			data, err := w.read(k)
			if err != nil {
				return err
			}
			if len(data) > 0 {
				t.Parts[0].CRC = sum(data)
			}
			_, err = to.Write(data)
			return err
		}}
	}
	header, places, err := safetensors.Plan(sources, nil)
	if err != nil {
		return err
	}
	m.Files = []File{{Name: filepath.Base(path), Bytes: int64(len(header)), Header: int64(len(header)), CRC: sum(header)}}
	for _, t := range w.tensors {
		t.Parts = []Part{}
		if t.len() > 0 {
			t.Parts = []Part{{Hi: t.len(), Offset: places[key(t.Kind, t.Name)].From}}
		}
		m.Files[0].Bytes += t.size(t.len())
	}
	err = create(fs, path, tensorFile(sources, nil))
	for _, t := range w.tensors {
		m.Tensors = append(m.Tensors, *t)
	}
	sortTensors(m.Tensors)
	return cmp.Or(err, m.check())
}

// nextNumber returns a number greater than those of all checkpoints in a folder.
func nextNumber(dir string) (int, error) {
	all, err := List(dir)
	n := 0
	for _, info := range all {
		n = max(n, info.number())
	}
	return n + 1, err
}

func sortTensors(t []Tensor) {
	slices.SortFunc(t, func(a, b Tensor) int { return strings.Compare(key(a.Kind, a.Name), key(b.Kind, b.Name)) })
}
