//go:build cgo && linux

package main

import (
	"fmt"
	"os/exec"
	"testing"

	"github.com/goddp/goddp/cmd/goddp/internal/tune"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/fakegpu"
)

// On GPUs all of NCCL's settings are compared, in pairs with the default, as is the default itself.
func TestEmulatedTuneNCCL(t *testing.T) {
	fakegpu.Use(t)
	ranks := testkit.World(t, 2, func(int) *exec.Cmd {
		cmd := process(t, tuning()...)
		cmd.Env = append(cmd.Env, "GODDP_DEVICE=cuda", "GODDP_NO_SMALL_ALLREDUCE=1")
		return cmd
	})
	ranks[0].Await(fmt.Sprintf("^goddp tune: %d runs, about ", 2*3*(1+len(tune.NCCL("all_reduce")))), 1) // the test does not wait for them
}
