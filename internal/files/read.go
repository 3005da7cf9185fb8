package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// NotRegularError says that a path leads to neither a regular file nor a folder.
type NotRegularError struct {
	Path string
	Kind string // what is there: "a named pipe"
}

func (e *NotRegularError) Error() string {
	return fmt.Sprintf("%s is not a regular file but %s", e.Path, e.Kind)
}

// checkRegular returns an error unless info, which describes the file at path, says that it is a regular file.
func checkRegular(path string, info fs.FileInfo) error {
	switch mode := info.Mode(); {
	case mode.IsRegular():
		return nil
	case mode.IsDir():
		return &fs.PathError{Op: "read", Path: path, Err: syscall.EISDIR}
	case mode&fs.ModeNamedPipe != 0:
		return &NotRegularError{path, "a named pipe"}
	case mode&fs.ModeSocket != 0:
		return &NotRegularError{path, "a socket"}
	default:
		return &NotRegularError{path, "a device"}
	}
}

// Open opens a regular file for reading, and never waits. If path leads to another kind of file, the
// error is an [*NotRegularError], or wraps EISDIR for a folder.
func Open(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ENXIO) { // nothing opens a socket
		if info, err := os.Stat(path); err == nil {
			return nil, checkRegular(path, info)
		}
	}
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil {
		err = checkRegular(path, info)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Read returns the content of a regular file, which may have at most `most` bytes.
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
	return fmt.Errorf("%s is too large: %d bytes, want at most %d", path, size, most)
}
