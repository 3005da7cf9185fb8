package checkpoint

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
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
	// NonFinite is a tensor that has a NaN, or an Inf unless it is a buffer of the model, such as
	// "model/0.weight". It is empty if there is none: the checkpoint is finite. Manifests of
	// earlier versions do not have it.
	NonFinite string `json:"non_finite,omitempty"`
	// WeightsOnly is whether the checkpoint was made of a file of weights.
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
	Kind  string            `json:"kind"` // "model", "optimizer0" (and so on), or "hook0" (and so on), the hook of a rank
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

func (t *Tensor) String() string {
	return fmt.Sprintf("%s %v%v", key(t.Kind, t.Name), t.DType.Device(), t.Shape)
}

// size returns the size of n elements in bytes.
func (t *Tensor) size(n int) int64 { return int64(n) * int64(t.DType.Device().Size()) }

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
		return fmt.Errorf("%q is no CRC-32C", text)
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
	return seal(data), nil
}

// seal encodes a sealed manifest by hand, because package json would change the bytes of the
// manifest.
func seal(manifest []byte) []byte {
	hash := sha256.Sum256(manifest)
	return slices.Concat([]byte(`{"sha256":"`+hex.EncodeToString(hash[:])+`","manifest":`), manifest, []byte("}\n"))
}

// readManifest reads the manifest of the checkpoint in a folder. If it is not as it was written, the
// error is a [*CorruptError].
func readManifest(fs filesystem, path string) (*Manifest, error) {
	if _, err := stat(fs, path); err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	data, err := readFile(fs, filepath.Join(path, manifestName))
	if errors.Is(err, os.ErrNotExist) {
		return nil, corrupt(path, "it has no %s", manifestName)
	}
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
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
	if err := json.Unmarshal(s.Manifest, &version); err != nil || version.Format != formatName {
		return nil, corrupt(path, "%s is of format %q, want %q", manifestName, version.Format, formatName)
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

// check returns an error unless the parts cover the tensors and lie within the files, and each rank has values.
func (m *Manifest) check() error {
	if len(m.RankValues) != m.WorldSize || m.WorldSize < 1 {
		return fmt.Errorf("it has the values of %d ranks, want those of %d", len(m.RankValues), m.WorldSize)
	}
	for i := range m.Tensors {
		t := &m.Tensors[i]
		if t.DType.Device() == device.Invalid {
			return fmt.Errorf("%s is of the unknown type %q", key(t.Kind, t.Name), t.DType)
		}
		if slices.ContainsFunc(t.Shape, func(n int) bool { return n < 0 }) {
			return fmt.Errorf("%s has the shape %v", key(t.Kind, t.Name), t.Shape)
		}
		end := 0
		for _, p := range t.Parts {
			if p.Lo != end || p.Hi <= p.Lo {
				return fmt.Errorf("%v: a part has elements %d to %d, those before it end at %d", t, p.Lo, p.Hi, end)
			}
			if p.File < 0 || p.File >= len(m.Files) || p.Offset < 0 || p.Offset+t.size(p.Hi-p.Lo) > m.Files[p.File].Bytes {
				return fmt.Errorf("%v: elements %d to %d are at byte %d of file %d, where they are not", t, p.Lo, p.Hi, p.Offset, p.File)
			}
			end = p.Hi
		}
		if end != t.len() {
			return fmt.Errorf("%v: its parts end at element %d of %d", t, end, t.len())
		}
	}
	for _, f := range m.Files {
		if f.Name != filepath.Base(f.Name) || f.Header < 0 || f.Header > f.Bytes {
			return fmt.Errorf("a file %q of %d bytes with a header of %d", f.Name, f.Bytes, f.Header)
		}
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

// Bytes returns the size of the checkpoint's files, without the manifest.
func (m *Manifest) Bytes() int64 {
	n := int64(0)
	for _, f := range m.Files {
		n += f.Bytes
	}
	return n
}
