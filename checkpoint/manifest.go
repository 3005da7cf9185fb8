package checkpoint

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/goddp/goddp/checkpoint/safetensors"
	"github.com/goddp/goddp/device"
)

// Version is the version of the format that this package writes, and the newest version that it
// reads.
const Version = 1

const (
	manifestName = "manifest.json"
	formatName   = "goddp checkpoint"
)

// Manifest lists the content of a checkpoint. It is the file manifest.json in the checkpoint's
// folder.
type Manifest struct {
	Format    string    `json:"format"`
	Version   int       `json:"version"`
	Step      int       `json:"step"`
	Number    int       `json:"number"` // orders the checkpoints of a folder: later ones have greater numbers
	Time      time.Time `json:"time"`
	WorldSize int       `json:"world_size"`
	// Optimizers holds the number of steps that each of State.Optimizers had committed.
	Optimizers []int `json:"optimizers"`
	// Values is the JSON of State.Values, and RankValues that of State.RankValues for each rank.
	Values     map[string]json.RawMessage   `json:"values"`
	RankValues []map[string]json.RawMessage `json:"rank_values"`
	// Hooks is whether each rank's hook was saved.
	Hooks bool `json:"hooks"`
	// NonFinite is the name of a tensor that makes the checkpoint not finite, such as "model/0.weight": it
	// contains a NaN, or it contains an Inf and is not a buffer of the model. NonFinite is empty if the checkpoint
	// is finite. Manifests of earlier versions do not have this field.
	NonFinite string `json:"non_finite,omitempty"`
	// Best is whether the checkpoint was the best so far when it was saved: see [State].
	Best bool `json:"best,omitempty"`
	// WeightsOnly is whether [Import] made the checkpoint from a file that has only weights.
	WeightsOnly bool     `json:"weights_only,omitempty"`
	Files       []File   `json:"files"`
	Tensors     []Tensor `json:"tensors"`
}

// File is a safetensors file of a checkpoint.
type File struct {
	Name   string   `json:"name"`
	Bytes  int64    `json:"bytes"`
	Header int64    `json:"header"` // the number of bytes before the first tensor
	CRC    checksum `json:"crc32c"` // the checksum of the header
}

// Tensor is a tensor of a checkpoint. Its parts are in the order of their elements, and together
// hold all elements.
type Tensor struct {
	Kind  string            `json:"kind"` // "model", "optimizerN" for State.Optimizers[N], or "hookN" for the hook of rank N
	Name  string            `json:"name"`
	DType safetensors.DType `json:"dtype"`
	Shape []int             `json:"shape"`
	Parts []Part            `json:"parts"`
}

// Part is the elements Lo to Hi-1 of a tensor. They begin at byte Offset of a file.
type Part struct {
	File   int      `json:"file"` // index in Manifest.Files
	Lo     int      `json:"lo"`
	Hi     int      `json:"hi"`
	Offset int64    `json:"offset"`
	CRC    checksum `json:"crc32c"`
}

// key returns the name of a tensor in the files of a checkpoint.
func key(kind, name string) string { return kind + "/" + name }

func (t *Tensor) String() string { return key(t.Kind, t.Name) + " " + t.layout() }

// layout returns the type and the shape.
func (t *Tensor) layout() string {
	if dt := t.DType.Device(); dt != device.Invalid {
		return fmt.Sprintf("%v%v", dt, t.Shape)
	}
	return fmt.Sprintf("%s%v", t.DType, t.Shape)
}

// size returns the size of n elements in bytes.
func (t *Tensor) size(n int) int64 { return int64(n) * int64(t.DType.Bits()) / 8 }

// len returns the number of elements.
func (t *Tensor) len() int { return device.Shape(t.Shape).Len() }

// checksum is a CRC-32C. In JSON it has eight hexadecimal digits.
type checksum uint32

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func sum(data []byte) checksum { return checksum(crc32.Checksum(data, castagnoli)) }

func (c checksum) String() string { return fmt.Sprintf("%08x", uint32(c)) }

func (c checksum) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

func (c *checksum) UnmarshalText(text []byte) error {
	b, err := hex.DecodeString(string(text))
	if err != nil || len(b) != 4 {
		return fmt.Errorf("%q is not a CRC-32C", text)
	}
	*c = checksum(b[0])<<24 | checksum(b[1])<<16 | checksum(b[2])<<8 | checksum(b[3])
	return nil
}

// CorruptError reports how a checkpoint differs from what was saved.
type CorruptError struct {
	Path     string   // the checkpoint's folder
	Problems []string // the corrupt tensors and files
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("checkpoint: %s is corrupt: %s", e.Path, strings.Join(e.Problems, "; "))
}

func corrupt(path, format string, args ...any) error {
	return &CorruptError{path, []string{fmt.Sprintf(format, args...)}}
}

// VersionError reports that a checkpoint has a format that this package does not know.
type VersionError struct {
	Path    string
	Version int
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("checkpoint: %s is of format version %d, this program reads versions up to %d: load it with a newer goddp", e.Path, e.Version, Version)
}

// sealed is a manifest with its checksum.
type sealed struct {
	SHA256   string          `json:"sha256"` // the checksum of the bytes of Manifest
	Manifest json.RawMessage `json:"manifest"`
}

// encode returns the content of manifest.json.
func (m *Manifest) encode() ([]byte, error) {
	data, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	if data = seal(data); len(data) > maxManifest {
		return nil, fmt.Errorf("the manifest has %d bytes, want at most %d", len(data), maxManifest)
	}
	return data, nil
}

// maxManifest is the largest size of a manifest in bytes.
const maxManifest = 1 << 30

// seal encodes a sealed manifest by hand, because package json would change the bytes of the
// manifest.
func seal(manifest []byte) []byte {
	hash := sha256.Sum256(manifest)
	return slices.Concat([]byte(`{"sha256":"`+hex.EncodeToString(hash[:])+`","manifest":`), manifest, []byte("}\n"))
}

// readManifest reads the manifest of the checkpoint in a folder. If it was changed since it was written, the
// error is a [*CorruptError].
func readManifest(fs filesystem, path string) (*Manifest, error) {
	if _, err := stat(fs, path); err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	data, err := readFile(fs, filepath.Join(path, manifestName), maxManifest)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, corrupt(path, "it has no %s", manifestName)
	case isIO(err):
		return nil, fmt.Errorf("checkpoint: %w", err)
	case err != nil:
		return nil, corrupt(path, "%v", err)
	}
	var s sealed
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, corrupt(path, "%s: %v", manifestName, err)
	}
	if !bytes.Equal(data, seal(s.Manifest)) {
		return nil, corrupt(path, "%s does not match its own SHA-256", manifestName)
	}
	var version struct {
		Format  string `json:"format"`
		Version int    `json:"version"`
	}
	if err := json.Unmarshal(s.Manifest, &version); err != nil || version.Format != formatName || version.Version < 1 {
		return nil, corrupt(path, "%s is of format %q, version %d, want %q, 1 to %d", manifestName, version.Format, version.Version, formatName, Version)
	}
	if version.Version > Version {
		return nil, &VersionError{path, version.Version}
	}
	m := &Manifest{}
	if err := json.Unmarshal(s.Manifest, m); err != nil {
		return nil, corrupt(path, "%s: %v", manifestName, err)
	}
	if err := m.check(); err != nil {
		return nil, corrupt(path, "%s: %v", manifestName, err)
	}
	return m, nil
}

// check returns an error unless the parts cover the tensors and lie within the files. If check returns nil, sizes
// computed from the manifest do not overflow.
func (m *Manifest) check() error {
	switch {
	case min(m.Step, m.Number) < 0, max(m.Step, m.Number) > maxStep:
		return fmt.Errorf("number %d and step %d: want both from 0 to %d", m.Number, m.Step, maxStep)
	case slices.ContainsFunc(m.Optimizers, func(steps int) bool { return steps < 0 || steps > maxStep }):
		return fmt.Errorf("the optimizers have committed %d steps, want 0 to %d", m.Optimizers, maxStep)
	case m.WorldSize < 1, m.WorldSize != len(m.RankValues):
		return fmt.Errorf("it has the values of %d ranks, but the world size is %d", len(m.RankValues), m.WorldSize)
	}
	total := int64(0)
	for _, f := range m.Files {
		if f.Name != filepath.Base(f.Name) || f.Header < 0 || f.Header > min(f.Bytes, 8+safetensors.MaxHeader) || f.Bytes > math.MaxInt64-total {
			return fmt.Errorf("invalid file entry %q: %d bytes with a header of %d bytes", f.Name, f.Bytes, f.Header)
		}
		total += f.Bytes
	}
	known := map[string]bool{}
	for i := range m.Tensors {
		t := &m.Tensors[i]
		if known[key(t.Kind, t.Name)] {
			return fmt.Errorf("two tensors are called %s", key(t.Kind, t.Name))
		}
		known[key(t.Kind, t.Name)] = true
		if err := m.checkTensor(t); err != nil {
			return fmt.Errorf("%v: %w", t, err)
		}
	}
	return nil
}

func (m *Manifest) checkTensor(t *Tensor) error {
	switch {
	case t.DType.Bits() == 0:
		return fmt.Errorf("unknown type %q", t.DType)
	case t.DType.Device() == device.Invalid && t.Kind != modelKind:
		return fmt.Errorf("a tensor of kind %s has type %s, which no device supports", t.Kind, t.DType)
	}
	n := 1
	for _, d := range t.Shape {
		if d < 0 || d > 0 && n > math.MaxInt/64/d { // an element has at most 64 bits
			return fmt.Errorf("shape %v", t.Shape)
		}
		n *= d
	}
	end := 0
	for _, p := range t.Parts {
		if p.Lo != end || p.Hi <= p.Lo || p.Hi > n || p.Hi*t.DType.Bits()%8 != 0 {
			return fmt.Errorf("a part has elements %d to %d of %d, but the parts before it end at element %d", p.Lo, p.Hi, n, end)
		}
		if p.File < 0 || p.File >= len(m.Files) {
			return fmt.Errorf("elements %d to %d are in file number %d, but there are %d files", p.Lo, p.Hi, p.File, len(m.Files))
		}
		if f := m.Files[p.File]; p.Offset < f.Header || p.Offset > f.Bytes-t.size(p.Hi-p.Lo) {
			return fmt.Errorf("elements %d to %d are at byte %d of %s, want bytes %d to %d", p.Lo, p.Hi, p.Offset, f.Name, f.Header, f.Bytes)
		}
		end = p.Hi
	}
	if end != n {
		return fmt.Errorf("its parts end at element %d, but it has %d elements", end, n)
	}
	return nil
}

// tensors returns the tensors of a kind, by name.
func (m *Manifest) tensors(kind string) map[string]*Tensor {
	all := map[string]*Tensor{}
	for i := range m.Tensors {
		if t := &m.Tensors[i]; t.Kind == kind {
			all[t.Name] = t
		}
	}
	return all
}

// foreign returns the names of the tensors whose types devices do not support. Only imported safetensors files have
// such tensors.
func (m *Manifest) foreign() (names []string) {
	for i := range m.Tensors {
		if t := &m.Tensors[i]; t.DType.Device() == device.Invalid {
			names = append(names, t.String())
		}
	}
	return names
}

// Bytes returns the size of the checkpoint's files, without the manifest.
func (m *Manifest) Bytes() int64 {
	n := int64(0)
	for _, f := range m.Files {
		n += f.Bytes
	}
	return n
}
