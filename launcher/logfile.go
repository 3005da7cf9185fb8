package launcher

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// logFile is a file to which one stream of a worker is written, byte for byte. The size of
// the file may be limited. If the next line would exceed the limit, the logFile renames its
// file from path to path.1, path.1 to path.2 and so on, and begins a new file at path. It
// copies no bytes.
//
// A line is divided between two files only if it is as long as the limit. If a part of a line
// is written already, the rest of the line follows in the same file, which may then exceed the
// limit.
type logFile struct {
	path    string
	maxSize int64 // in bytes; 0 means no limit
	keep    int   // number of old files that are kept, at least 1
	logf    func(format string, args ...any)
	lose    func(error) // says why bytes are lost

	file *os.File // nil after an error
	size int64    // of file
	line int64    // size of the line at the end of file that has no end yet
}

// open creates the file.
func (l *logFile) open() (err error) {
	l.file, err = os.Create(l.path)
	return err
}

// write appends p. If it fails, it says so, and the file gets no more bytes.
func (l *logFile) write(p []byte) {
	for len(p) > 0 && l.file != nil {
		n := l.fit(p)
		if n == 0 {
			l.rotate()
			continue
		}
		if _, err := l.file.Write(p[:n]); err != nil {
			l.lose(err)
			l.file.Close()
			l.file = nil
			return
		}
		l.size += int64(n)
		if last := bytes.LastIndexByte(p[:n], '\n'); last >= 0 {
			l.line = int64(n - last - 1)
		} else {
			l.line += int64(n)
		}
		p = p[n:]
	}
}

// fit returns how many of the first bytes of p belong into the present file. If it is 0, a
// new file must begin.
func (l *logFile) fit(p []byte) int {
	free := l.maxSize - l.size
	if l.maxSize == 0 || int64(len(p)) <= free {
		return len(p)
	}
	if lines := bytes.LastIndexByte(p[:max(free, 0)], '\n') + 1; lines > 0 {
		return lines
	}
	if l.line == 0 && l.size > 0 {
		return 0
	}
	if end := bytes.IndexByte(p, '\n') + 1; end > 0 {
		p = p[:end]
	}
	return int(min(int64(len(p)), l.maxSize-l.line))
}

// rotate begins a new file, and makes the folder again if it is gone. If it fails, it says so,
// and the present file grows without a limit.
func (l *logFile) rotate() {
	_ = os.MkdirAll(filepath.Dir(l.path), 0o755) // Create returns the error
	next, err := os.Create(l.path + ".new")
	if err == nil {
		if err = l.rename(); err != nil {
			err = errors.Join(err, next.Close(), os.Remove(next.Name()))
		}
	}
	if err != nil {
		l.maxSize = 0
		l.logf("log file: %v; it is not rotated any more", err)
		return
	}
	l.close()
	l.file, l.size, l.line = next, 0, 0
}

// rename gives all files their next names.
func (l *logFile) rename() error {
	last := 0 // the number of old files that stay
	for last < l.keep-1 && exists(l.old(last+1)) {
		last++
	}
	for i := last; i > 0; i-- {
		if err := os.Rename(l.old(i), l.old(i+1)); err != nil {
			return err
		}
	}
	if err := os.Rename(l.path, l.old(1)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Rename(l.path+".new", l.path)
}

// old returns the path of an old file; 1 is the newest.
func (l *logFile) old(i int) string { return fmt.Sprintf("%s.%d", l.path, i) }

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func (l *logFile) close() {
	if l.file == nil {
		return
	}
	if err := l.file.Close(); err != nil {
		l.logf("log file: %v", err)
	}
}
