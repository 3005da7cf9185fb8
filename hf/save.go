package hf

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/checkpoint/safetensors"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/files"
	"github.com/goddp/goddp/nn"
)

// SaveOptions are the choices of [Folder.Save].
type SaveOptions struct {
	// ShardSize is the maximum size of the weights in a file in bytes, unless one parameter is larger. 0 means the
	// files that the weights were read from.
	ShardSize int64
	// Stop are the tokens that end a generation, for eos_token_id of generation_config.json; nil copies the file as it is.
	Stop []int
}

const generationFile = "generation_config.json"

// copied lists the files that Save copies.
var copied = []string{
	generationFile, "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json",
	"added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "spiece.model", "chat_template.jinja", "chat_template.json",
}

// Save writes the model with its present weights to a folder, which it makes if necessary: config.json as it was read,
// with the type of the parameters; the weights; the files of the tokenizer and of generation. In a job one rank calls Save,
// within OnRank of the model of package ddp or ddp/zero, because the ranks may have divided the weights. Save waits until the
// device has computed the weights, or until ctx ends. Each file is replaced when the new one is complete. Other files of
// weights in dir, and adapters in it, are removed. opts may be nil.
func (f *Folder) Save(ctx context.Context, dir string, opts *SaveOptions) error {
	if err := f.save(ctx, dir, *cmp.Or(opts, &SaveOptions{})); err != nil {
		return fmt.Errorf("hf: %w", err)
	}
	return nil
}

func (f *Folder) save(ctx context.Context, dir string, o SaveOptions) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	fileOf := f.files
	if o.ShardSize > 0 {
		fileOf = f.shards(o.ShardSize)
	}
	sources, index, total := map[string]map[string]safetensors.Source{}, map[string]string{}, int64(0)
	for _, p := range f.Model.Parameters() {
		file, name := fileOf[p.Name()], f.names[p.Name()]
		if name == "" {
			return fmt.Errorf("parameter %s was added to the model of %s: want adapters to be merged before Save", p.Name(), f.Dir)
		}
		if sources[file] == nil {
			sources[file] = map[string]safetensors.Source{}
		}
		sources[file][name], index[name] = source(ctx, p), file
		total += bytesOf(p)
	}
	metadata := f.metadata
	if metadata["format"] == "" {
		metadata = map[string]string{"format": "pt"}
	}
	written := slices.Sorted(maps.Keys(sources))
	for _, file := range written {
		if err := files.Write(filepath.Join(dir, file), 0o666, func(w io.Writer) error { return safetensors.Write(w, sources[file], metadata) }); err != nil {
			return err
		}
	}
	if len(written) > 1 || written[0] != singleFile {
		text, err := json.MarshalIndent(map[string]any{"metadata": map[string]int64{"total_size": total}, "weight_map": index}, "", "  ")
		if err != nil {
			return err
		}
		if err := files.WriteBytes(filepath.Join(dir, indexFile), 0o666, append(text, '\n')); err != nil {
			return err
		}
		written = append(written, indexFile)
	}
	if err := removeOthers(dir, written); err != nil {
		return err
	}
	if err := files.WriteBytes(filepath.Join(dir, "config.json"), 0o666, f.configOf(f.Model.Parameters()[0].DType())); err != nil {
		return err
	}
	for _, name := range copied {
		text, err := os.ReadFile(filepath.Join(f.Dir, name))
		if o.Stop != nil && name == generationFile {
			text, err = withStop(text, o.Stop)
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = files.WriteBytes(filepath.Join(dir, name), 0o666, text)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// withStop returns a generation_config.json, which may be empty, with the tokens that end a generation.
func withStop(text []byte, stop []int) ([]byte, error) {
	config := map[string]any{}
	if len(text) > 0 {
		if err := json.Unmarshal(text, &config); err != nil {
			return nil, fmt.Errorf("%s: %w", generationFile, err)
		}
	}
	config["eos_token_id"] = stop
	text, err := json.MarshalIndent(config, "", "  ")
	return append(text, '\n'), err
}

// source returns the source of a parameter's elements.
func source(ctx context.Context, p *nn.Parameter) safetensors.Source {
	v, shape := p.Var(), slices.Clone(p.Shape())
	if isTransposed(p.Name()) {
		slices.Reverse(shape)
	}
	return safetensors.Source{DType: p.DType(), Shape: shape, Write: func(w io.Writer) (err error) {
		var data []byte
		autograd.NoGrad(v.Device(), func() {
			if isTransposed(p.Name()) {
				v := autograd.Transpose(v, 0, 1)
				defer v.Free()
				data, err = v.Bytes(ctx)
			} else {
				data, err = v.Bytes(ctx)
			}
		})
		if err == nil {
			_, err = w.Write(data)
		}
		return err
	}}
}

func bytesOf(p *nn.Parameter) int64 { return int64(p.Shape().Len()) * int64(p.DType().Size()) }

// shards divides the parameters, in their order, among files of at most most bytes.
func (f *Folder) shards(most int64) (fileOf map[string]string) {
	fileOf = map[string]string{}
	shard, n, size := map[string]int{}, 1, int64(0)
	for _, p := range f.Model.Parameters() {
		if size > 0 && size+bytesOf(p) > most {
			n, size = n+1, 0
		}
		size += bytesOf(p)
		shard[p.Name()] = n
	}
	for name, i := range shard {
		if fileOf[name] = singleFile; n > 1 {
			fileOf[name] = fmt.Sprintf("model-%05d-of-%05d.safetensors", i, n)
		}
	}
	return fileOf
}

// stale matches the files of weights that Save may have written, and PEFT's files.
var stale = regexp.MustCompile(`^(model(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?|adapter_(config\.json|model\.safetensors))$`)

// removeOthers removes the files of weights and adapters that are not among written. A reader could take such weights for
// a part of the model, and transformers would load the adapters and their base instead of the model.
func removeOthers(dir string, written []string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if err == nil && stale.MatchString(e.Name()) && !slices.Contains(written, e.Name()) {
			err = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
	return err
}

var dtypeKey = regexp.MustCompile(`("(?:torch_)?dtype"\s*:\s*")\w+"`)

// configOf returns config.json for parameters of type dt.
func (f *Folder) configOf(dt device.DType) []byte {
	return dtypeKey.ReplaceAll(f.config, []byte("${1}"+dt.String()+`"`))
}
