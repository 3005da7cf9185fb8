// Package regular opens files that must be regular. Anything may lie at a path: the open of a named
// pipe waits until a writer comes, and a device such as /dev/zero has no end. A program that reads a
// stream once, such as standard input, has no need of this package.
package regular

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// Error says that a path leads to no regular file.
type Error struct {
	Path string
	Mode fs.FileMode // of what is there
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s is no regular file, but %s", e.Path, kind(e.Mode))
}

func kind(mode fs.FileMode) string {
	switch {
	case mode.IsDir():
		return "a folder"
	case mode&fs.ModeNamedPipe != 0:
		return "a named pipe"
	case mode&fs.ModeSocket != 0:
		return "a socket"
	case mode&fs.ModeDevice != 0:
		return "a device"
	}
	return "of mode " + mode.String()
}

// Open opens a regular file for reading, and never waits. If path leads to another kind of file, the
// error is an [*Error].
func Open(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ENXIO) { // nothing opens a socket
		if info, err := os.Stat(path); err == nil {
			return nil, &Error{path, info.Mode()}
		}
	}
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &Error{path, info.Mode()}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Read returns the content of a regular file of at most most bytes.
func Read(path string, most int64) ([]byte, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case info.Size() > most:
		return nil, tooLarge(path, info.Size(), most)
	}
	// The file may have grown since Stat.
	content, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(content)) > most {
		return nil, tooLarge(path, int64(len(content)), most)
	}
	return content, err
}

func tooLarge(path string, size, most int64) error {
	return fmt.Errorf("%s is too large: %d bytes, at most %d are read", path, size, most)
}
