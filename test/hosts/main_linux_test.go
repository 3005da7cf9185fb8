package hosts

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/netns"
)

var (
	kills = flag.Int("kills", 0, "number of jobs in which a process is killed; 0: a few of them, and of the other tests only those that take seconds")
	seed  = flag.Uint64("seed", 0, "seed of the first of these jobs")
)

func TestMain(m *testing.M) { testkit.Main(m, nil) }

// program returns the path of golaunch or of the worker.
func program(t testing.TB, name string) string {
	t.Helper()
	return filepath.Join(testkit.Build(t, "cmd/golaunch", "cmd/golaunch-etcd", "test/hosts/worker"), name)
}

// start starts a program on a host.
func start(t *testing.T, h *netns.Host, env []string, name string, args ...string) *testkit.Process {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(append(os.Environ(), "GODDP_DEVICE=cpu", "TMPDIR="+t.TempDir()), env...)
	return testkit.StartBy(t, cmd, func() error { return h.Start(cmd) })
}

// ends waits for the end of a program and checks its exit code.
func ends(t *testing.T, p *testkit.Process, code int) {
	t.Helper()
	if got := p.Wait(); got != code {
		t.Errorf("%v: exit code %d, want %d", p.Cmd, got, code)
	}
}

// sigkilled is the exit code of a process that SIGKILL ended.
const sigkilled = 128 + int(syscall.SIGKILL)

// inMakeHosts skips a test that takes long, unless make hosts runs the tests.
func inMakeHosts(t *testing.T) {
	t.Helper()
	if *kills == 0 {
		t.Skip("make hosts runs it")
	}
}
