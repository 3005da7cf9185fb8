package data

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/goddp/goddp/internal/files"
)

// find returns the path of the file with the given name in dir, or of its gzipped version.
func find(dir, name string) (string, error) {
	plain := filepath.Join(dir, name)
	for _, path := range []string{plain, plain + ".gz"} {
		if _, err := os.Stat(path); err == nil {
			return path, nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("data: %w", err)
		}
	}
	return "", fmt.Errorf("data: neither %s nor %s.gz is in %s: %w", name, name, dir, fs.ErrNotExist)
}

// A file is read sequentially, and decompressed if it is gzipped. It counts the bytes read.
type file struct {
	path   string
	r      io.Reader
	offset int64 // the decompressed bytes read so far
	gzip   bool
	closer io.Closer
}

func open(path string) (*file, error) {
	f, err := files.Open(path)
	if err != nil {
		return nil, fmt.Errorf("data: %w", err)
	}
	buffered := bufio.NewReaderSize(f, 1<<20)
	in := &file{path: path, r: buffered, closer: f}
	if magic, err := buffered.Peek(2); err == nil && magic[0] == 0x1f && magic[1] == 0x8b {
		in.gzip = true
		if in.r, err = gzip.NewReader(buffered); err != nil {
			f.Close()
			return nil, in.fail(err)
		}
	}
	return in, nil
}

func (f *file) close() { f.closer.Close() }

// read reads n bytes. It allocates memory as the bytes arrive, so a wrong n in a header does no harm.
func (f *file) read(n int) ([]byte, error) {
	var b bytes.Buffer
	got, err := io.CopyN(&b, f.r, int64(n))
	f.offset += got
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return nil, f.fail(fmt.Errorf("truncated: %d bytes are missing", int64(n)-got))
	}
	if err != nil {
		return nil, f.fail(err)
	}
	return b.Bytes(), nil
}

// end returns an error unless the file has ended.
func (f *file) end() error {
	switch n, err := f.r.Read(make([]byte, 1)); {
	case n > 0:
		return f.fail(errors.New("extra data at the end: more bytes than the header says"))
	case err != nil && err != io.EOF:
		return f.fail(err)
	}
	return nil
}

// fail adds the file's path and the offset to err.
func (f *file) fail(err error) error {
	if f.gzip {
		return fmt.Errorf("data: %s: at byte %d of the decompressed file: %w", f.path, f.offset, err)
	}
	return fmt.Errorf("data: %s: at byte %d: %w", f.path, f.offset, err)
}
