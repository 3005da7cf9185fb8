package main

import (
	"context"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/internal/handshake"
	"github.com/goddp/goddp/internal/jobenv"
	"github.com/goddp/goddp/internal/store"
	"github.com/goddp/goddp/internal/testkit"
)

// join is a worker that joins the process group and leaves. Before it leaves, each rank
// has a connection of its own to the store.
func join(ctx context.Context) error {
	w, err := comm.WorldFromEnv()
	if err != nil {
		return err
	}
	secret, err := handshake.ReadSecret(jobenv.Security{TokenFile: os.Getenv(jobenv.TokenFileVar)})
	if err != nil {
		return err
	}
	kv, err := store.Dial(ctx, net.JoinHostPort(w.MasterAddr, strconv.Itoa(w.MasterPort)), &store.ClientOptions{
		Member: &store.Member{Job: handshake.JobFromEnv(w.Size), Rank: w.Rank, Secret: secret},
	})
	if err != nil {
		return err
	}
	defer kv.Close()
	n, err := kv.Add(ctx, "holding", 1)
	if err == nil && n == int64(w.Size) {
		err = kv.Set(ctx, "all hold", []byte("yes"))
	}
	if err == nil {
		err = kv.Wait(ctx, "all hold")
	}
	if err != nil {
		return err
	}
	pg, err := comm.Init(ctx, nil)
	if err != nil {
		return err
	}
	defer pg.Close()
	return pg.Barrier().Wait(ctx)
}

// limited returns a command that runs golaunch in a process that may open 64 files.
func limited(t *testing.T, env []string, args ...string) *exec.Cmd {
	cmd := golaunch(t, env, args...)
	shell := exec.CommandContext(t.Context(), "bash", append([]string{"-c", `ulimit -n 64; exec "$@"`, "bash"}, cmd.Args...)...)
	shell.Env = cmd.Env
	return shell
}

// A rank for which the store has no free connection learns the reason, and the report
// shows it. The store has 12 connections for the 8 ranks, and each rank needs at least
// two.
func TestFullStoreSaysWhy(t *testing.T) {
	worker := testkit.Self(t, "join")
	got := testkit.Run(t, limited(t, []string{"TMPDIR=" + t.TempDir()}, "--nproc-per-node=8", "env", worker.Env[len(worker.Env)-1], worker.Path))
	const why = "13 connections, at most 12: the store's process may open 64 files: raise its limit (ulimit -n)"
	ranks, report, failed := strings.Cut(got.Stderr, "Root Cause (first observed failure):")
	root, _, _ := strings.Cut(report, "from its stderr:")
	if got.Code != 1 || !failed || !strings.Contains(ranks, "joining the process group: ") || !strings.Contains(root, why) {
		t.Errorf("exit code %d; the root cause is not %q:\n%s", got.Code, why, got.Stderr)
	}
}

// golaunch does not start more workers than it can open files for.
func TestTooManyWorkersForDescriptors(t *testing.T) {
	got := testkit.Run(t, limited(t, nil, "--nproc-per-node=16", "true"))
	const why = "16 workers need 104 open files, but the limit of this process is 64: raise its limit (ulimit -n)"
	if got.Code != 1 || !strings.Contains(got.Stderr, why) {
		t.Errorf("exit code %d, want 1 and %q:\n%s", got.Code, why, got.Stderr)
	}
}
