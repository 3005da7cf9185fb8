// Package atomicfile writes files that are there whole or not at all: those of a process
// that may end at any moment, or that others read meanwhile. It writes where a path
// from the environment or a flag says, and so into folders that others may have made:
// it never writes through a link of theirs, and not into a folder that is theirs.
package atomicfile

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Write makes what write writes the content of a file of this mode: a new one under
// another name in the same folder, which then takes the place of what is at path, be
// it a link. It does not wait for the disk. Errors name path. A pipe or a device stays
// what it is, and is written to. Write fails where [CheckFolder] does for the folder.
func Write(path string, mode fs.FileMode, write func(io.Writer) error) error {
	name := filepath.Base(path)
	folder, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return of(path, err)
	}
	defer folder.Close()
	if err := check(filepath.Dir(path), folder); err != nil {
		return of(path, err)
	}
	if inPlace, err := leadsToDevice(folder, path); err != nil {
		return of(path, err)
	} else if inPlace {
		return writeInPlace(path, write)
	}
	temp := prefix(path) + rand.Text()
	f, err := folder.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return of(path, err)
	}
	defer folder.Remove(temp) // fails once it is renamed
	wrote := write(f)
	err = errors.Join(f.Chmod(mode), f.Close())
	switch {
	case wrote != nil:
		return of(path, wrote)
	case err != nil:
		return of(path, err)
	}
	return of(path, folder.Rename(temp, name))
}

// prefix is what other names for path begin with.
func prefix(path string) string { return "." + filepath.Base(path) + "." }

// leadsToDevice tells whether path is a pipe or a device, or a link to one that nobody
// but this user or root made, such as /dev/stdout. It is an error that path is a folder.
func leadsToDevice(folder *os.Root, path string) (bool, error) {
	info, err := folder.Lstat(filepath.Base(path))
	switch {
	case err != nil || info.Mode().IsRegular():
		return false, nil // what else is wrong, writing finds out
	case info.IsDir():
		return false, &fs.PathError{Op: "write", Path: path, Err: fs.ErrExist}
	case info.Mode()&fs.ModeSymlink == 0:
		return true, nil
	}
	target, err := os.Stat(path)
	return err == nil && isOwnOrRoots(info) && !target.Mode().IsRegular() && !target.IsDir(), nil
}

// writeInPlace writes to a pipe or device. A pipe that nobody reads is an error.
func writeInPlace(path string, write func(io.Writer) error) error {
	f, err := os.OpenFile(path, os.O_WRONLY|syscall.O_NONBLOCK, 0)
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
	case errors.As(err, &p) && (p.Path == path || strings.HasPrefix(filepath.Base(p.Path), prefix(path))):
		return &fs.PathError{Op: p.Op, Path: path, Err: p.Err}
	}
	return fmt.Errorf("%s: %w", path, err)
}
