//go:build cgo && linux

package commtest

import (
	"os/exec"
	"strings"
	"testing"
)

// Two processes share a GPU, which the backend refuses on one host.
func TestProcessesShareGPU(t *testing.T) {
	OutsideJobs(t)
	if out, err := exec.CommandContext(t.Context(), ownHost[0], append(ownHost[1:], "true")...).CombinedOutput(); err != nil {
		t.Skipf("no boot id of its own: %v: %s", err, out)
	}
	FakeGPUs(t, 0) // sets the variables of the fake libraries
	flags := []string{"-test.run", "^TestSum$"}
	vars := []string{"GODDP_FLIGHT_DIR=" + t.TempDir(), "GODDP_NO_SMALL_ALLREDUCE=1"}
	if _, said, err := job(t.Context(), 2, flags, append(vars, sharedGPU)); err != nil {
		t.Errorf("%v\n%s", err, said)
	}
	defer func(before []string) { ownHost = before }(ownHost)
	ownHost = nil
	if _, said, err := job(t.Context(), 2, flags, append(vars, sharedGPU)); err == nil || !strings.Contains(said, "ranks 0 and 1 are both on GPU") {
		t.Errorf("on one host: %v\n%s", err, said)
	}
}
