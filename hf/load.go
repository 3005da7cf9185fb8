package hf

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/checkpoint/safetensors"
	"github.com/goddp/goddp/decoder"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
)

// Folder is a folder of the hub and its model.
type Folder struct {
	// Model has the weights of the folder. Open does not place it.
	Model *decoder.Model
	// Dir is the folder that was loaded.
	Dir string

	config []byte
	// files and names hold, for each parameter by its name in the model, the file that it was read from and its name
	// there.
	files, names map[string]string
	metadata     map[string]string
	path         string // of the file of weights, or of the index
	set          *safetensors.Set
}

// LoadOptions are the choices of [Load] and [Open].
type LoadOptions struct {
	// DType is the type of the parameters, to which the files' numbers are converted; Invalid means Float32.
	DType device.DType
	// Masters keeps the unrounded values of 16-bit parameters for the master weights of the optimizer, for training:
	// see [nn.CastOptions].
	Masters bool
	// Recompute says what the backward pass computes again, which takes less memory.
	Recompute decoder.Recompute
}

const (
	singleFile = "model.safetensors"
	indexFile  = "model" + safetensors.IndexSuffix
)

// Load reads a folder and places its model on a device. opts may be nil. Every rank calls Load, and reads each weight
// once, one after the other, so the host needs memory for the largest. An error names the file, and what is missing,
// unexpected or of another shape.
func Load(dir string, dev device.Device, opts *LoadOptions) (*Folder, error) {
	f, err := Open(dir, opts)
	if err != nil {
		return nil, err
	}
	if err = errors.Join(nn.Place(f.Model, dev, 0), f.Close()); err != nil {
		return nil, fmt.Errorf("hf: %s: %w", f.path, err)
	}
	return f, nil
}

// Open opens a folder and does not place its model: ddp.New and zero.New do. In stage 3 of package ddp/zero no rank then ever
// holds all of it. The files stay open until Close. A parameter's weights are read when it is placed, or by
// [nn.Parameter.Initial]. opts may be nil. Errors are those of Load.
func Open(dir string, opts *LoadOptions) (*Folder, error) {
	f, err := open(dir, cmp.Or(opts, &LoadOptions{}))
	if err != nil {
		return nil, fmt.Errorf("hf: %w", err)
	}
	return f, nil
}

// FilesDType returns the type in which the files hold the first parameter, and usually all of them. The loaded parameters
// have another type if LoadOptions.DType says so.
func (f *Folder) FilesDType() device.DType {
	return f.set.Tensors()[f.names[f.Model.Parameters()[0].Name()]].DType.Device()
}

// Close closes the files of a folder that Open opened.
func (f *Folder) Close() error { return f.set.Close() }

func open(dir string, o *LoadOptions) (*Folder, error) {
	text, m, err := newModel(dir, o.Recompute)
	if err != nil {
		return nil, err
	}
	f := &Folder{Model: m, Dir: dir, config: text}
	if err := nn.Cast(f.Model, cmp.Or(o.DType, device.Float32), &nn.CastOptions{Masters: o.Masters}); err != nil {
		return nil, err
	}
	if f.path, err = weights(dir); err != nil {
		return nil, err
	}
	if f.set, err = safetensors.OpenSet(f.path); err != nil {
		return nil, err
	}
	f.metadata = f.set.Metadata()
	if err := f.find(f.set); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", f.path, err), f.set.Close())
	}
	f.setInits()
	return f, nil
}

// weights returns the path of the file of weights or of the index in dir.
func weights(dir string) (string, error) {
	for _, name := range []string{singleFile, indexFile} {
		if _, err := os.Stat(filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
			return filepath.Join(dir, name), err
		}
	}
	err := fmt.Errorf("%s has neither %s nor %s", dir, singleFile, indexFile)
	if found, _ := filepath.Glob(filepath.Join(dir, "pytorch_model*.bin")); found != nil {
		err = fmt.Errorf("%w, but %s: save the model with transformers again, which converts it", err, filepath.Base(found[0]))
	}
	return "", err
}

// ignored matches tensors that old versions of transformers wrote and that are no parameters.
var ignored = regexp.MustCompile(`(^|\.)(rotary_emb\.inv_freq|attn\.bias|attn\.masked_bias)$`)

// isTransposed reports whether a parameter is the transpose of the file's: GPT-2's matrices are [in out] there.
func isTransposed(name string) bool {
	return strings.HasPrefix(name, "transformer.h.") && strings.Contains(name, ".c_") && strings.HasSuffix(name, ".weight")
}

// find finds the tensor of each parameter, and checks its type and shape.
func (f *Folder) find(set *safetensors.Set) error {
	tensors, e := set.Tensors(), &nn.StateError{}
	f.names, f.files = map[string]string{}, map[string]string{}
	for _, p := range f.Model.Parameters() {
		name := p.Name()
		if _, ok := tensors[name]; !ok { // the files of a model without its head have names without the first part
			_, name, _ = strings.Cut(name, ".")
		}
		t, ok := tensors[name]
		if !ok {
			e.Missing = append(e.Missing, p.Name())
			continue
		}
		shape := slices.Clone(p.Shape())
		if isTransposed(p.Name()) {
			slices.Reverse(shape)
		}
		if dt := t.DType.Device(); !dt.IsFloat() || !slices.Equal(t.Shape, shape) {
			e.Mismatched = append(e.Mismatched, nn.StateMismatch{Name: name, State: fmt.Sprintf("%v%v", t.DType, t.Shape), Module: fmt.Sprintf("%v%v", p.DType(), shape)})
		}
		f.names[p.Name()], f.files[p.Name()] = name, set.FileOf(name)
		delete(tensors, name)
	}
	_, hasHead := tensors[head]
	if hasHead = hasHead && f.isTied(); hasHead {
		delete(tensors, head)
	}
	for name := range tensors {
		if !ignored.MatchString(name) {
			e.Unexpected = append(e.Unexpected, name)
		}
	}
	slices.Sort(e.Unexpected)
	if len(e.Missing)+len(e.Unexpected)+len(e.Mismatched) > 0 {
		return e
	}
	if hasHead {
		return f.checkTied(set)
	}
	return nil
}

// head is the name of the weights of the logits.
const head = "lm_head.weight"

// isTied reports whether the logits are computed with the embeddings of the tokens, the first parameter.
func (f *Folder) isTied() bool {
	return !slices.ContainsFunc(f.Model.Parameters(), func(p *nn.Parameter) bool { return p.Name() == head })
}

// checkTied checks that the file's weights of the logits are the embeddings.
func (f *Folder) checkTied(set *safetensors.Set) error {
	name := f.names[f.Model.Parameters()[0].Name()]
	x, err := set.Read(name)
	if err != nil {
		return err
	}
	y, err := set.Read(head)
	if err == nil && !bytes.Equal(x, y) {
		err = fmt.Errorf("tie_word_embeddings is true, but %s and %s differ", name, head)
	}
	return err
}

// setInits makes each parameter read its weights when it is placed.
func (f *Folder) setInits() {
	tensors := f.set.Tensors()
	for _, p := range f.Model.Parameters() {
		p.SetInit(func(dev device.Device, dst device.Tensor, _, _ uint64) (err error) {
			name := f.names[p.Name()]
			data, err := f.set.Read(name)
			if err != nil {
				return err
			}
			autograd.Scope(dev, func() {
				t := tensors[name]
				v := autograd.FromBytes(dev, t.DType.Device(), t.Shape, data)
				from := v
				if isTransposed(p.Name()) {
					from = autograd.Transpose(autograd.Cast(v, dst.DType), 0, 1)
				}
				if err = from.Err(); err == nil {
					err = dev.Kernels().Copy(dev.Compute(), dst, from.Tensor())
				}
				v.Free()
			})
			return err
		})
	}
}
