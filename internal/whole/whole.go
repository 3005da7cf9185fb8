// Package whole writes files that are there whole or not at all: those of a process
// that may end at any moment, or that others read meanwhile.
package whole

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Write makes what write writes the content of a file of this mode, in place of an
// earlier one: under another name in the same folder first. It does not wait for the
// disk. Errors name path.
func Write(path string, mode fs.FileMode, write func(io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return of(path, err)
	}
	defer os.Remove(f.Name()) // fails once it is renamed
	wrote := write(f)
	err = errors.Join(f.Chmod(mode), f.Close())
	switch {
	case wrote != nil:
		return fmt.Errorf("%s: %w", path, wrote)
	case err != nil:
		return of(path, err)
	}
	return of(path, os.Rename(f.Name(), path))
}

// WriteBytes is Write for content that is there already.
func WriteBytes(path string, mode fs.FileMode, content []byte) error {
	return Write(path, mode, func(w io.Writer) error {
		_, err := w.Write(content)
		return err
	})
}

// of is err, of what was done under another name, as an error of path.
func of(path string, err error) error {
	var p *fs.PathError
	var l *os.LinkError
	switch {
	case errors.As(err, &p):
		return &fs.PathError{Op: p.Op, Path: path, Err: p.Err}
	case errors.As(err, &l):
		return &fs.PathError{Op: l.Op, Path: path, Err: l.Err}
	}
	return err
}
