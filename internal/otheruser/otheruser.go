// Package otheruser starts processes of another user, for tests that such processes are
// refused.
package otheruser

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// UID is the user id and group id of the processes.
const UID = 54321

// Command returns a command that runs the test binary as user UID, with env added to this
// process's environment. It skips the test if this process may not change its user.
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
