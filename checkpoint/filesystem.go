package checkpoint

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"github.com/goddp/goddp/checkpoint/safetensors"
	"github.com/goddp/goddp/internal/files"
)

// filesystem holds the system calls that a Manager makes for its checkpoints. Tests replace it to make a given
// call fail.
type filesystem interface {
	Open(path string) (source, error) // opens a file or a folder
	Mkdir(path string) error          // succeeds if the folder exists already
	Create(path string) (file, error)
	Rename(from, to string) error
	SyncFolder(path string) error
	RemoveAll(path string) error
}

// source is an existing file or folder that is open.
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

// disk is the operating system's file system.
type disk struct{}

// Open opens a regular file or a folder, and never blocks. For any other kind of file it returns a
// [*files.NotRegularError].
func (disk) Open(path string) (source, error) {
	f, err := files.Open(path)
	if errors.Is(err, syscall.EISDIR) {
		f, err = os.Open(path)
	}
	if err != nil {
		return nil, err
	}
	return f, nil
}

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

// diskFile makes the operating system write to the disk while the program still adds data, so that Sync has
// little left to write.
type diskFile struct {
	*os.File
	written   int64 // the number of bytes that the program has added
	submitted int64 // the number of these for which startWriteback was called
}

// stride is the number of bytes between two calls of startWriteback.
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

// SyncFolder makes the names in a folder durable. If a file system cannot sync folders, SyncFolder
// assumes that its names are durable.
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

// open opens a file that another host may just have made. It opens the folder first, because a network file
// system may take names and sizes from a cache until the folder or file is opened.
func open(fs filesystem, path string) (source, error) {
	if folder, err := fs.Open(filepath.Dir(path)); err == nil {
		folder.Close()
	}
	return fs.Open(path)
}

// stat is os.Stat for a file that another host may just have made.
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

// readFile reads a file of at most most bytes, which another host may just have made.
func readFile(fs filesystem, path string, most int64) (data []byte, err error) {
	err = retried(func() error {
		f, err := open(fs, path)
		if err != nil {
			return err
		}
		defer f.Close()
		info, err := f.Stat()
		switch {
		case err != nil:
			return err
		case info.IsDir():
			return &files.NotRegularError{Path: path, Kind: "a folder"}
		case info.Size() > most:
			return fmt.Errorf("%s has %d bytes, want at most %d", path, info.Size(), most)
		}
		data, err = io.ReadAll(io.NewSectionReader(f, 0, info.Size()))
		return err
	})
	return data, err
}

// isIO reports whether err comes from a system call. If not, the file could be read, but its content or kind is
// wrong.
func isIO(err error) bool {
	var e *os.PathError
	return errors.As(err, &e)
}

// retried calls f, and calls f a second time if a network file system reports a stale handle: the file that f had
// opened no longer exists. The second call opens the file that now has the name.
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
	return cmp.Or(err, f.Close()) // the first error is the cause
}

// replace replaces the file at path. The new content is durable before it becomes visible at path.
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

// content returns a function that writes data.
func content(data []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	}
}

// tensorFile returns a function that writes tensors in the format of package safetensors.
func tensorFile(tensors map[string]safetensors.Source, metadata map[string]string) func(io.Writer) error {
	return func(w io.Writer) error {
		b := bufio.NewWriterSize(w, 1<<20)
		if err := safetensors.Write(b, tensors, metadata); err != nil {
			return err
		}
		return b.Flush()
	}
}
