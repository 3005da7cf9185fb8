// Package testpython runs Python for the tests that compare with PyTorch. The interpreter is the one
// that GODDP_TEST_PYTHON names, by default /usr/bin/python3.
package testpython

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"testing"
)

// unsupported is the exit code of a script if Python has not got a package that the script
// needs.
const unsupported = 77

func interpreter() string {
	if python := os.Getenv("GODDP_TEST_PYTHON"); python != "" {
		return python
	}
	return "/usr/bin/python3"
}

// Require returns the interpreter's path. It skips the test if a Python statement, such as
// "import torch", fails.
func Require(t *testing.T, statement string) string {
	t.Helper()
	python := interpreter()
	if out, err := exec.CommandContext(t.Context(), python, "-c", statement).CombinedOutput(); err != nil {
		t.Skipf("%s -c %q: %v: %s", python, statement, err, out)
	}
	return python
}

// Output runs the interpreter with args and returns its standard output. It skips the test if
// there is no interpreter, or if the script exits with code 77, which means that a package is
// not installed. Any other failure fails the test. Output must be called from the test's
// goroutine.
func Output(t *testing.T, stdin io.Reader, args ...string) []byte {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), interpreter(), args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		t.Skip(err)
	case errors.As(err, &exit) && exit.ExitCode() == unsupported:
		t.Skipf("%s lacks a package: %s", interpreter(), &stderr)
	case err != nil:
		t.Fatalf("%v: %v\n%s", cmd, err, &stderr)
	}
	return stdout.Bytes()
}
