package testkit

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

// programVar is the environment variable that names the program to run in place of the tests.
const programVar = "GODDP_TEST_PROGRAM"

// Main is a package's TestMain. In a process of [Self] it runs that program and exits when it returns. Otherwise it runs
// the tests and looks for goroutines that they have left behind. A package whose test binary is a program by other means
// checks for that before it calls Main.
func Main(m *testing.M, programs map[string]func()) {
	if name, ok := os.LookupEnv(programVar); ok {
		program, ok := programs[name]
		if !ok {
			panic("testkit: the test binary has no program " + name)
		}
		program()
		os.Exit(0)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		os.RemoveAll(binaries.dir)
		os.RemoveAll(shared.dir)
		os.Exit(code)
	}))
}

// Self returns the command that runs a program that the test binary gave to [Main].
func Self(t testing.TB, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = Env(programVar + "=" + program)
	return cmd
}

// Env returns os.Environ with vars appended, each NAME=value. Later values win.
func Env(vars ...string) []string { return append(os.Environ(), vars...) }

// OtherUID is the user ID and group ID of commands that [AsUser] returns.
const OtherUID = 54321

// AsUser makes a command of this test binary run as the user and group [OtherUID]. It copies the binary to where that user can read
// it, and needs [Root].
func AsUser(t testing.TB, cmd *exec.Cmd) *exec.Cmd {
	t.Helper()
	Need(t, Root)
	self, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "user-") // t.TempDir is not readable for others
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	cmd.Path = filepath.Join(dir, "test")
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(cmd.Path, self, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: OtherUID, Gid: OtherUID}}
	return cmd
}

// shared is the folder of SharedDir.
var shared struct {
	sync.Once
	dir string // removed by Main
	err error
}

// SharedDir returns a folder that the tests of this binary share. The package's TestMain must call [Main], which removes it.
func SharedDir(t testing.TB) string {
	t.Helper()
	shared.Do(func() { shared.dir, shared.err = os.MkdirTemp("", "goddp-shared-") })
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.dir
}

// binaries are the programs that Build has built.
var binaries struct {
	sync.Mutex
	dir   string // removed by Main
	built map[string]bool
}

// Build builds commands of this module, once for a test binary, and returns the folder that holds them. A package is
// named by its path from the module's root, such as "cmd/golaunch". The package's TestMain must call [Main].
func Build(t testing.TB, packages ...string) (dir string) {
	t.Helper()
	oneProcess(t)
	Need(t, Command("go"))
	b := &binaries
	b.Lock()
	defer b.Unlock()
	if b.built == nil {
		var err error
		if b.dir, err = os.MkdirTemp("", "goddp-test-"); err != nil {
			t.Fatal(err)
		}
		b.built = map[string]bool{}
		dependOnSources(t)
	}
	args := []string{"build", "-o", b.dir + string(filepath.Separator)}
	for _, p := range packages {
		if !b.built[p] {
			b.built[p] = true
			args = append(args, "github.com/goddp/goddp/"+p)
		}
	}
	if len(args) > 3 {
		if out, err := exec.CommandContext(t.Context(), "go", args...).CombinedOutput(); err != nil {
			t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	return b.dir
}

// dependOnSources looks at every source file of the module, so that a cached result of the test is not used after one
// has changed. The test cache does not notice which files a build reads.
func dependOnSources(t testing.TB) {
	t.Helper()
	err := filepath.WalkDir(ModuleRoot(t), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && path != "." && strings.HasPrefix(d.Name(), ".") {
			return fs.SkipDir
		}
		if err == nil && d.Type().IsRegular() {
			_, err = os.Stat(path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// ModuleRoot returns the folder of the module's go.mod.
func ModuleRoot(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd() // a test starts in the folder of its package
	for ; err == nil; dir = filepath.Dir(dir) {
		if _, statErr := os.Stat(filepath.Join(dir, "go.mod")); statErr == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			break
		}
	}
	t.Fatalf("no go.mod above %s: %v", dir, err)
	return ""
}
