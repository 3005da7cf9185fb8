package flight

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goddp/goddp/internal/jobenv"
)

func TestDir(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	s := jobenv.Flight{JobID: "abc"}
	dir, err := Dir(s)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 || filepath.Dir(dir) != tmp || !strings.HasSuffix(dir, "_abc") {
		t.Errorf("%s, mode %v, %v", dir, info.Mode(), err)
	}
	if again, err := Dir(s); err != nil || again != dir {
		t.Errorf("the second time: %s, %v", again, err)
	}
	if slashed, err := Dir(jobenv.Flight{JobID: "team/run"}); err != nil || filepath.Dir(slashed) != tmp {
		t.Errorf("of a job whose id has a slash: %s, %v, want a folder in %s", slashed, err, tmp)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := Dir(s); err == nil {
		t.Error("a folder that others can write into was accepted")
	}
	// A chosen folder that all users can write to also gets a subfolder.
	if err := os.Chmod(tmp, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	if got := Folder(tmp, "abc"); got != dir {
		t.Errorf("Folder returned %s, want %s", got, dir)
	}
	if _, err := Dir(jobenv.Flight{Dir: tmp, JobID: "abc"}); err == nil {
		t.Error("there, a folder that others can write into was accepted")
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(t.TempDir(), dir); err != nil {
		t.Fatal(err)
	}
	if _, err := Dir(s); err == nil {
		t.Error("a link was accepted")
	}
}
