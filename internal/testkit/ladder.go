package testkit

import (
	"flag"
	"strings"
	"testing"
)

var long = flag.Bool("long", false, "run also the tests that start jobs, wait in real time, emulate a GPU or meet other programs")

// Long skips the test unless the flag -long is set.
func Long(t testing.TB) {
	t.Helper()
	if !*long {
		t.Skip("runs with -long")
	}
}

// IsLong reports whether the flag -long is set. Simulations and sweeps run more of their cases then.
func IsLong() bool { return *long }

// Emulated marks a test that runs kernels on the emulated GPU. It is [Long], and the test's name must contain Emulated.
// Under the race detector it skips the test: the kernels are C++, which the detector does not see.
func Emulated(t testing.TB) {
	t.Helper()
	if !strings.Contains(t.Name(), "Emulated") {
		t.Fatal("a test on the emulated GPU has Emulated in its name: make emulated selects it by that")
	}
	Long(t)
	if Race {
		t.Skip("the race detector does not see the emulated GPU's kernels")
	}
}

// oneProcess skips the test under the race detector, which does not see the processes that the test starts.
func oneProcess(t testing.TB) {
	t.Helper()
	if Race {
		t.Skip("starts processes, which the race detector does not see")
	}
}
