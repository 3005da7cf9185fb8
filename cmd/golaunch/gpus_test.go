//go:build cgo && linux

package main

import (
	"strings"
	"testing"

	"github.com/goddp/goddp/internal/testkit/fakegpu"
)

// golaunch starts as many workers as CUDA sees GPUs, which are 16 emulated ones.
func TestEmulatedWorkersOfGPUs(t *testing.T) {
	fakegpu.Use(t)
	for _, kind := range []string{"gpu", "auto"} {
		if got := runIt(t, []string{"CUDA_VISIBLE_DEVICES=0,0"}, "--nproc-per-node="+kind, "echo", "ready"); strings.Count(got.Stdout, "ready") != 16 {
			t.Errorf("--nproc-per-node %s: %+v", kind, got)
		}
	}
}
