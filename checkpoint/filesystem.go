package checkpoint

import (
	"bufio"
	"cmp"
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"github.com/goddp/goddp/checkpoint/safetensors"
)

// filesystem is what a Manager asks of the operating system for its checkpoints. Tests have
// one that fails at a given call.
type filesystem interface {
	Open(path string) (source, error) // a file or a folder
	Mkdir(path string) error          // also when it is there
	Create(path string) (file, error)
	Rename(from, to string) error
	SyncFolder(path string) error
	RemoveAll(path string) error
}

// source is a file that is there, or a folder.
type source interface {
	io.ReaderAt
	Stat() (os.FileInfo, error)
	Close() error
}

// file is a new file.
type file interface {
	io.Writer
	Sync() error
	Close() error
}

// disk is the operating system's.
type disk struct{}

func (disk) Open(path string) (source, error) { return os.Open(path) }

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
	written   int64 // bytes
	submitted int64 // those that the disk was told to write
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
		if f.written-f.submitted >= stride {
			startWriteback(f.File, f.submitted, f.written-f.submitted)
			f.submitted = f.written
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

// open opens what another host may have made a moment ago. A network file system may answer
// for its names and sizes from a cache, but asks the server when a folder or file is opened.
func open(fs filesystem, path string) (source, error) {
	if folder, err := fs.Open(filepath.Dir(path)); err == nil {
		folder.Close()
	}
	return fs.Open(path)
}

// stat is like os.Stat, for a file that another host may have made a moment ago.
func stat(fs filesystem, path string) (info os.FileInfo, err error) {
	err = retried(func() error {
		f, err := open(fs, path)
		if err != nil {
			return err
		}
		defer f.Close()
		info, err = f.Stat()
		return err
	})
	return info, err
}

// readFile is like os.ReadFile, for a file that another host may have made a moment ago.
func readFile(fs filesystem, path string) (data []byte, err error) {
	err = retried(func() error {
		f, err := open(fs, path)
		if err != nil {
			return err
		}
		defer f.Close()
		info, err := f.Stat()
		if err == nil {
			data, err = io.ReadAll(io.NewSectionReader(f, 0, info.Size()))
		}
		return err
	})
	return data, err
}

// retried calls f. It calls f once more if a network file system no longer knew a file that f had
// opened: f then opens the present file of that name.
func retried(f func() error) error {
	err := f()
	if errors.Is(err, syscall.ESTALE) {
		err = f()
	}
	return err
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
	return cmp.Or(err, f.Close()) // the first tells what is wrong
}

// replace puts a file in the place of what is at path. Its content is durable before it is
// there.
func replace(fs filesystem, path, temp string, write func(io.Writer) error) error {
	err := create(fs, temp, write)
	if err == nil {
		err = fs.Rename(temp, path)
	}
	if err != nil {
		return err
	}
	return fs.SyncFolder(filepath.Dir(path))
}

// content writes data.
func content(data []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	}
}

// tensorFile writes tensors in the format of package safetensors.
func tensorFile(tensors map[string]safetensors.Source, metadata map[string]string) func(io.Writer) error {
	return func(w io.Writer) error {
		b := bufio.NewWriterSize(w, 1<<20)
		if err := safetensors.Write(b, tensors, metadata); err != nil {
			return err
		}
		return b.Flush()
	}
}
