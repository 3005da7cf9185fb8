package files

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

// Write writes a file with the given mode, less the umask's bits, and the content that write
// writes. It writes a new file with another name in the same folder, and renames it to path.
// So it replaces a symbolic link at path. If path is a pipe or a device, it writes to that. It
// does not sync the file to disk. Errors name path. Write fails if [CheckFolder] fails for the
// folder.
func Write(path string, mode fs.FileMode, write func(io.Writer) error) error {
	name := filepath.Base(path)
	folder, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return of(path, err)
	}
	defer folder.Close()
	if err := checkFolder(filepath.Dir(path), folder); err != nil {
		return of(path, err)
	}
	if inPlace, err := leadsToDevice(folder, path); err != nil {
		return of(path, err)
	} else if inPlace {
		return writeInPlace(path, write)
	}
	temp := prefix(path) + rand.Text()
	f, err := folder.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return of(path, err)
	}
	defer folder.Remove(temp) // has no effect after the rename
	wrote := write(f)
	err = f.Close()
	switch {
	case wrote != nil:
		return of(path, wrote)
	case err != nil:
		return of(path, err)
	}
	return of(path, folder.Rename(temp, name))
}

// prefix returns the prefix of the names of temporary files for path.
func prefix(path string) string { return "." + filepath.Base(path) + "." }

// leadsToDevice reports whether path is a pipe or a device, or a symbolic link to a pipe or
// device, such as /dev/stdout. The link must be this user's or root's. It returns an error if
// path is a folder.
func leadsToDevice(folder *os.Root, path string) (bool, error) {
	info, err := folder.Lstat(filepath.Base(path))
	switch {
	case err != nil || info.Mode().IsRegular():
		return false, nil // the write returns any other error
	case info.IsDir():
		return false, &fs.PathError{Op: "write", Path: path, Err: syscall.EISDIR}
	case info.Mode()&fs.ModeSymlink == 0:
		return true, nil
	}
	target, err := os.Stat(path)
	return err == nil && isOwnOrRoots(info) && !target.Mode().IsRegular() && !target.IsDir(), nil
}

// writeInPlace writes to a pipe or a device. It returns an error for a pipe without a reader.
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

// WriteBytes does what Write does, with the given content.
func WriteBytes(path string, mode fs.FileMode, content []byte) error {
	return Write(path, mode, func(w io.Writer) error {
		_, err := w.Write(content)
		return err
	})
}

// of wraps err with path. err may name the temporary file, or come from the caller's function.
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
