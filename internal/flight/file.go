package flight

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/goddp/goddp/internal/files"
)

// maxFile is the largest size of a dump's file that is read, in bytes. The default ring takes 1 MiB.
const maxFile = 64 << 20

// File returns the file name of a rank's dump.
func File(rank int) string { return fmt.Sprintf("rank_%d.json", rank) }

// Write writes the dump to a folder, which it creates if necessary, and returns the file's path. It
// refuses a folder of another user, or one that others can write to. Only the owner may read the
// file. Write replaces an earlier dump of the same rank atomically.
func (d *Dump) Write(dir string) (path string, err error) {
	data, err := json.MarshalIndent(d, "", " ")
	if err != nil {
		return "", fmt.Errorf("flight: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("flight: %w", err)
	}
	path = filepath.Join(dir, File(d.Rank))
	if err := files.WriteBytes(path, 0o600, append(data, '\n')); err != nil {
		return "", fmt.Errorf("flight: %w", err)
	}
	return path, nil
}

// ReadFile reads one dump.
func ReadFile(path string) (*Dump, error) {
	data, err := files.Read(path, maxFile)
	if err != nil {
		return nil, fmt.Errorf("flight: %w", err)
	}
	d, err := decodeDump(data)
	if err != nil {
		return nil, fmt.Errorf("flight: %s: %w", path, err)
	}
	return d, nil
}

// ErrNoDumps is the error of [ReadDir] for a folder that contains no dumps or cannot be read.
var ErrNoDumps = errors.New("no dumps: want files named rank_*.json")

// ReadDir reads the dumps of a folder, which are named rank_*.json, in order of rank. If some files
// cannot be read, it returns the other dumps and an error that names each such file.
func ReadDir(dir string) ([]*Dump, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("flight: %w: %w", ErrNoDumps, err)
	}
	var dumps []*Dump
	var errs []error
	files := 0
	for _, e := range entries {
		if ok, _ := filepath.Match("rank_*.json", e.Name()); !ok {
			continue
		}
		files++
		d, err := ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		dumps = append(dumps, d)
	}
	if files == 0 {
		return nil, fmt.Errorf("flight: %w, in %s", ErrNoDumps, dir)
	}
	slices.SortStableFunc(dumps, func(a, b *Dump) int { return a.Rank - b.Rank })
	return dumps, errors.Join(errs...)
}
