package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/goddp/goddp/internal/testkit"
)

func TestMain(m *testing.M) {
	testkit.Main(m, map[string]func(){"write": func() {
		if err := WriteBytes(os.Args[1], 0o600, []byte("new")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}})
}

const stranger, other = testkit.OtherUID, 65533 // users that own nothing here

// folders returns a folder that every user can traverse, and only root can write into.
func folders(t *testing.T) string {
	t.Helper()
	testkit.Need(t, testkit.Root)
	dir, err := os.MkdirTemp("/tmp", "files-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// makeFolder makes a folder with a user, a group and a mode.
func makeFolder(t *testing.T, dir string, uid, gid int, mode fs.FileMode) {
	t.Helper()
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, uid, gid), os.Chmod(dir, mode)); err != nil {
		t.Fatal(err)
	}
}

// writeAs writes to a file from a process of the stranger.
func writeAs(t *testing.T, path string) error {
	t.Helper()
	if r := testkit.Run(t, testkit.AsUser(t, testkit.Self(t, "write", path))); r.Code != 0 {
		return errors.New(r.Stderr)
	}
	return nil
}

// Write refuses folders into which other users can write, with the reason, except for
// folders of root with the sticky bit.
func TestFoldersOfOthersAreRefused(t *testing.T) {
	top := folders(t)
	shared := filepath.Join(top, "shared")
	makeFolder(t, shared, 0, 0, 0o777|fs.ModeSticky)
	for i, c := range []struct {
		in       string
		uid, gid int
		mode     fs.FileMode
		writer   int
		refused  string // "": it is written
	}{
		{top, stranger, stranger, 0o777, 0, "users other than 0"},
		{top, stranger, stranger, 0o777 | fs.ModeSticky, 0, "users other than 0"},
		{top, stranger, stranger, 0o775, 0, "users other than 0"},
		{shared, stranger, stranger, 0o755, 0, "who created it in a folder that all users can write into"},
		{top, stranger, stranger, 0o755, 0, ""}, // as a container sees its host's folders
		{top, 0, 0, 0o777, 0, ""},               // its own
		{top, 0, 0, 0o777 | fs.ModeSticky, 0, ""},
		{top, 0, 0, 0o777 | fs.ModeSticky, stranger, ""}, // /tmp
		{top, 0, 0, 0o777, stranger, fmt.Sprint("users other than ", stranger)},
		{top, 0, other, 0o777, stranger, fmt.Sprint("users other than ", stranger)},
		{top, 0, stranger, 0o775, stranger, ""}, // a volume for the writer's group
		{top, other, stranger, 0o775, stranger, fmt.Sprint("users other than ", stranger)},
		{top, other, other, 0o777 | fs.ModeSticky, stranger, fmt.Sprint("users other than ", stranger)},
		{shared, stranger, stranger, 0o700, stranger, ""},
	} {
		dir := filepath.Join(c.in, fmt.Sprint(i))
		makeFolder(t, dir, c.uid, c.gid, c.mode)
		path := filepath.Join(dir, "rank_1.json")
		var err error
		if c.writer == 0 {
			err = WriteBytes(path, 0o600, []byte("new"))
		} else {
			err = writeAs(t, path)
		}
		got, _ := os.ReadFile(path)
		if c.refused == "" {
			if err != nil || string(got) != "new" {
				t.Errorf("%+v: %q, %v", c, got, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), c.refused) || got != nil {
			t.Errorf("%+v: %q, %v", c, got, err)
		}
		if left, _ := os.ReadDir(dir); len(left) > 0 {
			t.Errorf("%+v: left %v", c, left)
		}
	}
}

// Write does not follow a symbolic link that another user made, neither in place of the
// file nor in place of the folder.
func TestLinksOfOthersAreNotFollowed(t *testing.T) {
	top := folders(t)
	private := filepath.Join(top, "own")
	makeFolder(t, private, 0, 0, 0o777)
	precious := filepath.Join(top, "precious")
	if err := os.WriteFile(precious, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	symlink := filepath.Join(private, "rank_1.json")
	if err := errors.Join(os.Symlink(precious, symlink), os.Lchown(symlink, stranger, stranger)); err != nil {
		t.Fatal(err)
	}
	if err := WriteBytes(symlink, 0o600, []byte("new")); err != nil {
		t.Error(err)
	}
	if got, err := os.ReadFile(precious); string(got) != "precious" {
		t.Errorf("what the link leads to holds %q, %v", got, err)
	}
	pipe := filepath.Join(private, "pipe")
	device := filepath.Join(private, "device")
	if err := errors.Join(syscall.Mkfifo(pipe, 0o600), os.Symlink(pipe, device), os.Lchown(device, stranger, stranger)); err != nil {
		t.Fatal(err)
	}
	if err := WriteBytes(device, 0o600, []byte("new")); err != nil {
		t.Error(err)
	}
	if info, err := os.Lstat(device); err != nil || !info.Mode().IsRegular() {
		t.Errorf("a stranger's link to a pipe became %v, %v, want a file", info.Mode(), err)
	}
	folder := filepath.Join(top, "folder")
	if err := errors.Join(os.Symlink(private, folder), os.Lchown(folder, stranger, stranger)); err != nil {
		t.Fatal(err)
	}
	if err := WriteBytes(filepath.Join(folder, "f"), 0o600, nil); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("is a symbolic link of user %d", stranger)) {
		t.Errorf("a stranger's link to a folder: %v", err)
	}
}
