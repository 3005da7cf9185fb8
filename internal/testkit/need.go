package testkit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"testing"
)

// Requirement is something that a test needs and a machine may lack.
type Requirement struct {
	name  string
	check func() error // why the machine lacks it
}

// Need skips the test if the machine lacks one of the requirements, and says which, and why.
func Need(t testing.TB, all ...Requirement) {
	t.Helper()
	for _, r := range all {
		if err := r.check(); err != nil {
			t.Skipf("needs %s: %v", r.name, err)
		}
	}
}

// Requires is what a package's own tests need. check returns why the machine lacks it.
func Requires(name string, check func() error) Requirement { return Requirement{name, check} }

// Root is a process of the user root.
var Root = Requirement{"root", func() error {
	if uid := os.Geteuid(); uid != 0 {
		return fmt.Errorf("the user id is %d", uid)
	}
	return nil
}}

// Linux is the operating system.
var Linux = Requirement{"Linux", func() error {
	if runtime.GOOS != "linux" {
		return errors.New("this is " + runtime.GOOS)
	}
	return nil
}}

// Command is a program in PATH.
func Command(name string) Requirement {
	return Requirement{name, func() error {
		_, err := exec.LookPath(name)
		return err
	}}
}

// ModuleProxy is a proxy from which the go command downloads modules.
var ModuleProxy = Requirement{"a module proxy", func() error {
	cmd := exec.Command("go", "list", "-m", "golang.org/x/sys@latest") // what is latest is in no cache
	cmd.Dir, cmd.Env = os.TempDir(), Env("GOFLAGS=", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}}

// Interpreter is the Python that tests run: GODDP_TEST_PYTHON, or /usr/bin/python3.
func Interpreter() string {
	if python := os.Getenv("GODDP_TEST_PYTHON"); python != "" {
		return python
	}
	return "/usr/bin/python3"
}

// Python is a Python in which a statement succeeds, such as "import torch".
func Python(statement string) Requirement {
	return Requirement{"Python with " + statement, func() error {
		out, err := exec.Command(Interpreter(), "-c", statement).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}}
}

// Torch is a Python with PyTorch.
var Torch = Python("import torch")

// noPackage is the exit code of a script if Python lacks a package that the script needs.
const noPackage = 77

// RunPython runs the [Interpreter] and returns its standard output. It skips the test if there is no interpreter, or if the
// script exits with code 77 because Python lacks a package. Any other failure fails the test.
func RunPython(t testing.TB, stdin io.Reader, args ...string) []byte {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), Interpreter(), args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &stdout, &stderr
	err := cmd.Run()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		t.Skipf("needs Python: %v", err)
	case cmd.ProcessState != nil && cmd.ProcessState.ExitCode() == noPackage:
		t.Skipf("needs a package that %s lacks: %s", Interpreter(), &stderr)
	case err != nil:
		t.Fatalf("%v: %v\n%s", cmd, err, &stderr)
	}
	return stdout.Bytes()
}
