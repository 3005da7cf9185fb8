// Package otheruser starts processes of another user, for tests of what such a process
// may not do.
package otheruser

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// UID is the user and the group that the processes have.
const UID = 54321

// Command is the test's own binary as a process of user UID, with what env adds to this
// process's environment. It skips the test where this process may not start one.
func Command(t *testing.T, env ...string) *exec.Cmd {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can start a process of another user")
	}
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Skipf("this binary cannot be copied to where another user can run it: %v", err)
	}
	dir, err := os.MkdirTemp("", "otheruser")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "test")
	if err := os.WriteFile(path, self, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), path)
	cmd.Dir = "/"
	cmd.Env = append(append(os.Environ(), "TMPDIR="+os.TempDir()), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: UID, Gid: UID}}
	return cmd
}
