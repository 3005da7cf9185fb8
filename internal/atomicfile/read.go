package atomicfile

import (
	"fmt"
	"io"
	"os"
	"syscall"
)

// Read returns the content of a regular file of at most most bytes. Another process may have
// put any kind of file at path. Read never blocks, not even if the file is a pipe.
func Read(path string, most int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is no regular file", path)
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
