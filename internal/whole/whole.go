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
	"strings"
)

// Write makes what write writes the content of a file of this mode, in place of an
// earlier one: under another name in the same folder first. It does not wait for the
// disk. Errors name path. What is there and is no regular file, such as a pipe or a
// link, stays what it is, and is written to.
func Write(path string, mode fs.FileMode, write func(io.Writer) error) error {
	if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() && !info.IsDir() {
		return inPlace(path, mode, write)
	}
	f, err := os.CreateTemp(filepath.Dir(path), prefix(path)+"*")
	if err != nil {
		return of(path, err)
	}
	defer os.Remove(f.Name()) // fails once it is renamed
	wrote := write(f)
	err = errors.Join(f.Chmod(mode), f.Close())
	switch {
	case wrote != nil:
		return of(path, wrote)
	case err != nil:
		return of(path, err)
	}
	return of(path, os.Rename(f.Name(), path))
}

// prefix is what other names for path begin with.
func prefix(path string) string { return "." + filepath.Base(path) + "." }

func inPlace(path string, mode fs.FileMode, write func(io.Writer) error) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	if err := errors.Join(write(f), f.Close()); err != nil {
		return of(path, err)
	}
	return nil
}

// WriteBytes is Write for content that is there already.
func WriteBytes(path string, mode fs.FileMode, content []byte) error {
	return Write(path, mode, func(w io.Writer) error {
		_, err := w.Write(content)
		return err
	})
}

// of is err, of what was done under another name or by a caller, as an error of path.
func of(path string, err error) error {
	var p *fs.PathError
	var l *os.LinkError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &l):
		return &fs.PathError{Op: l.Op, Path: path, Err: l.Err}
	case errors.As(err, &p) && strings.HasPrefix(filepath.Base(p.Path), prefix(path)):
		return &fs.PathError{Op: p.Op, Path: path, Err: p.Err}
	}
	return fmt.Errorf("%s: %w", path, err)
}
