package files

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Only a regular file is opened. Other kinds of files give an error that says what they are, at once.
func TestOnlyRegularFilesAreRead(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	socket, err := net.Listen("unix", at("socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	if err := errors.Join(os.WriteFile(at("file"), []byte("12345"), 0o600), syscall.Mkfifo(at("pipe"), 0o600),
		os.Mkdir(at("folder"), 0o700), os.Symlink(at("file"), at("link")), os.Symlink(at("pipe"), at("link-to-pipe"))); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path string
		most int64
		want string // the content, or what the error contains
	}{
		{at("file"), 5, "12345"},
		{at("link"), 5, "12345"},
		{at("file"), 4, "file is too large: 5 bytes, want at most 4"},
		{at("none"), 5, "no such file"},
		{at("pipe"), 5, "pipe is not a regular file but a named pipe"},
		{at("link-to-pipe"), 5, "link-to-pipe is not a regular file but a named pipe"},
		{at("socket"), 5, "socket is not a regular file but a socket"},
		{at("folder"), 5, "folder: is a directory"},
		{"/dev/zero", 5, "/dev/zero is not a regular file but a device"},
	} {
		content, err := Read(c.path, c.most)
		if string(content) != c.want && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %q, %v, want %q", c.path, content, err, c.want)
		}
	}
}
