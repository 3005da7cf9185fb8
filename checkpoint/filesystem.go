package checkpoint

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

// filesystem is what writing a checkpoint asks of the operating system. Tests have one
// that fails at a given call.
type filesystem interface {
	Mkdir(path string) error // also when it is there
	Create(path string) (file, error)
	Rename(from, to string) error
	SyncFolder(path string) error
	RemoveAll(path string) error
}

// file is a new file.
type file interface {
	io.Writer
	Sync() error
	Close() error
}

// disk is the operating system's.
type disk struct{}

func (disk) Mkdir(path string) error {
	if err := os.Mkdir(path, 0o777); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil
}

func (disk) Create(path string) (file, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return nil, err
	}
	return &diskFile{File: f}, nil
}

// diskFile has the disk write while the program still does: Sync then has little left.
type diskFile struct {
	*os.File
	written, begun int64 // bytes, and those that the disk was told to write
}

// stride is how many bytes the disk is told to write at once.
const stride = 16 << 20

func (f *diskFile) Write(data []byte) (int, error) {
	n := 0
	for n < len(data) {
		chunk := data[n:min(n+stride, len(data))]
		k, err := f.File.Write(chunk)
		n, f.written = n+k, f.written+int64(k)
		if err != nil {
			return n, err
		}
		if f.written-f.begun >= stride {
			beginWriting(f.File, f.begun, f.written-f.begun)
			f.begun = f.written
		}
	}
	return n, nil
}

func (disk) Rename(from, to string) error { return os.Rename(from, to) }

func (disk) RemoveAll(path string) error { return os.RemoveAll(path) }

// SyncFolder makes the names in a folder durable. A file system that cannot sync folders
// is taken to have them durable.
func (disk) SyncFolder(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Sync(); err != nil && !errors.Is(err, errors.ErrUnsupported) && !errors.Is(err, syscall.EINVAL) {
		return err
	}
	return nil
}

// create writes a new file and makes its content durable.
func create(fs filesystem, path string, write func(io.Writer) error) error {
	f, err := fs.Create(path)
	if err != nil {
		return err
	}
	err = write(f)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// replace puts a file with this content in the place of what is at path. The content is
// durable before it is there.
func replace(fs filesystem, path, temp string, content []byte) error {
	err := create(fs, temp, func(w io.Writer) error {
		_, err := w.Write(content)
		return err
	})
	if err == nil {
		err = fs.Rename(temp, path)
	}
	if err != nil {
		return err
	}
	return fs.SyncFolder(filepath.Dir(path))
}
