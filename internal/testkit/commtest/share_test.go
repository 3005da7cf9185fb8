//go:build cgo && linux

package commtest

import (
	"strings"
	"testing"
)

// Two processes share a GPU, which the backend refuses on one host.
func TestEmulatedGPUIsShared(t *testing.T) {
	OutsideJobs(t)
	FakeGPUs(t, 0) // sets the variables of the fake libraries
	flags := []string{"-test.run", "^TestSum$"}
	vars := []string{"GODDP_FLIGHT_DIR=" + t.TempDir(), "GODDP_NO_SMALL_ALLREDUCE=1", "GODDP_DEVICE=cuda:0"}
	t.Setenv(ShareVar, "1")
	if _, said, err := job(t.Context(), 2, flags, vars); err != nil {
		t.Errorf("%v\n%s", err, said)
	}
	t.Setenv(ShareVar, "")
	if _, said, err := job(t.Context(), 2, flags, vars); err == nil || !strings.Contains(said, "ranks 0 and 1 are both on GPU") {
		t.Errorf("on one host: %v\n%s", err, said)
	}
}
