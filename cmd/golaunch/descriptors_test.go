package main

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/goddp/goddp/comm"
)

// joinVar makes this test binary, as a worker, run join.
const joinVar = "GODDP_TEST_JOIN"

// join is a worker that joins the process group and leaves.
func join(ctx context.Context) error {
	pg, err := comm.Init(ctx, nil)
	if err != nil {
		return err
	}
	defer pg.Close()
	return pg.Barrier().Wait(ctx)
}

// A rank for which the store has no connection learns why, and so does the report.
func TestFullStoreSaysWhy(t *testing.T) {
	limited := golaunch(t, []string{joinVar + "=1", "TMPDIR=" + t.TempDir()}, "--nproc-per-node=8", os.Args[0])
	cmd := exec.CommandContext(t.Context(), "bash", append([]string{"-c", `ulimit -n 64; exec "$@"`, "bash"}, limited.Args...)...)
	cmd.Env = limited.Env
	got := finish(t, cmd)
	const why = "13 connections, at most 12: the store's process may open 64 files: raise its limit (ulimit -n)"
	ranks, report, failed := strings.Cut(got.stderr, "Root Cause (first observed failure):")
	root, _, _ := strings.Cut(report, "from its stderr:")
	if got.code != 1 || !failed || !strings.Contains(ranks, "joining the process group: ") || !strings.Contains(root, why) {
		t.Errorf("exit code %d; the root cause is not %q:\n%s", got.code, why, got.stderr)
	}
}
