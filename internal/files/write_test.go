package files

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestWrite(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o026))
	path := filepath.Join(t.TempDir(), "f")
	for _, content := range []string{"first", "second, which is longer", "3"} {
		if err := WriteBytes(path, 0o666, []byte(content)); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != content {
			t.Errorf("got %q, %v; want %q", got, err, content)
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o640 {
		t.Errorf("mode %v, %v; want 0640", info.Mode(), err)
	}
}

// A failed write leaves the earlier file, and no other file.
func TestAFailureLeavesWhatWasThere(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	if err := WriteBytes(path, 0o600, []byte("old")); err != nil {
		t.Fatal(err)
	}
	full := errors.New("no space")
	err := Write(path, 0o600, func(w io.Writer) error {
		io.WriteString(w, "half of the n")
		return full
	})
	if !errors.Is(err, full) || !strings.Contains(err.Error(), path+":") {
		t.Errorf("got %v, want %v of %s", err, full, path)
	}
	if got, err := os.ReadFile(path); string(got) != "old" {
		t.Errorf("the file holds %q, %v", got, err)
	}
	if entries, err := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("the folder holds %v, %v", entries, err)
	}
}

// An error names the file that the caller named.
func TestErrorsNameTheFile(t *testing.T) {
	dir := t.TempDir()
	taken := filepath.Join(dir, "taken")
	if err := os.MkdirAll(filepath.Join(taken, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]error{filepath.Join(dir, "none", "f"): fs.ErrNotExist, taken: syscall.EISDIR} {
		err := WriteBytes(path, 0o600, nil)
		if !errors.Is(err, want) || !strings.Contains(err.Error(), path+":") {
			t.Errorf("%s: got %v, want %v of that path", path, err, want)
		}
	}
	if entries, err := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("the folder holds %v, %v", entries, err)
	}
}

// Write replaces a symbolic link and does not follow it, because another user may have
// made it.
func TestSymlinkIsReplaced(t *testing.T) {
	dir := t.TempDir()
	target, symlink := filepath.Join(dir, "target"), filepath.Join(dir, "link")
	if err := errors.Join(os.WriteFile(target, []byte("what was there before"), 0o600), os.Symlink(target, symlink)); err != nil {
		t.Fatal(err)
	}
	if err := WriteBytes(symlink, 0o600, []byte("new")); err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(symlink)
	if err != nil || !info.Mode().IsRegular() {
		t.Errorf("it is %v, %v", info.Mode(), err)
	}
	for path, want := range map[string]string{symlink: "new", target: "what was there before"} {
		if got, err := os.ReadFile(path); string(got) != want {
			t.Errorf("%s holds %q, %v, want %q", path, got, err, want)
		}
	}
}

// Write writes to a pipe and does not replace it, also through a symbolic link of this
// user.
func TestAPipeIsWrittenTo(t *testing.T) {
	dir := t.TempDir()
	pipe, symlink := filepath.Join(dir, "pipe"), filepath.Join(dir, "link")
	if err := errors.Join(syscall.Mkfifo(pipe, 0o600), os.Symlink(pipe, symlink)); err != nil {
		t.Fatal(err)
	}
	if err := WriteBytes(pipe, 0o600, []byte("new")); !errors.Is(err, syscall.ENXIO) {
		t.Errorf("without a reader: %v, want %v", err, syscall.ENXIO)
	}
	reader, err := os.OpenFile(pipe, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	for _, path := range []string{pipe, symlink} {
		if err := WriteBytes(path, 0o600, []byte("new")); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 10)
		if n, err := reader.Read(got); string(got[:n]) != "new" {
			t.Errorf("%s: read %q, %v", path, got[:n], err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode()&fs.ModeNamedPipe == 0 {
			t.Errorf("%s became %v, %v", path, info.Mode(), err)
		}
	}
}
