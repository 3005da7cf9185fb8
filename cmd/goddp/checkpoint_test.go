package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goddp/goddp/checkpoint"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/nn"
)

// The commands list, verify, compare and convert what package checkpoint saved.
func TestCheckpoint(t *testing.T) {
	dir, empty := t.TempDir(), t.TempDir()
	run, file, again := filepath.Join(dir, "run"), filepath.Join(dir, "model.safetensors"), filepath.Join(dir, "again")
	commtest.OnGoroutines(t, 2, nil, func(pg *comm.ProcessGroup) error {
		m, err := checkpoint.Open(t.Context(), pg, run, &checkpoint.Options{})
		if err != nil {
			return err
		}
		for step := 1; step <= 2; step++ {
			net := nn.Sequential(nn.Linear(30, 20, nil), nn.ReLU(), nn.Linear(20, 10, nil))
			if err := nn.Place(net, pg.Device(), uint64(step)); err != nil {
				return err
			}
			if err := m.Save(t.Context(), step, checkpoint.State{Model: net}); err != nil {
				return err
			}
		}
		return m.Close()
	})
	first, second := filepath.Join(run, "step-00000001"), filepath.Join(run, "step-00000002")
	said := func(code int, want string, args ...string) {
		t.Helper()
		got, out, errs := goddp(t, append([]string{"checkpoint"}, args...)...)
		out += errs
		if got != code || !strings.Contains(out, want) {
			t.Errorf("goddp checkpoint %q: exit code %d, want %d, with %q in\n%s", args, got, code, want, out)
		}
	}
	said(0, "step-00000002 (latest)  2     ", "ls", run)
	said(0, "2      verified", "ls", run, "--verify")
	said(0, "step-00000001: verified", "verify", run)
	said(0, "", "diff", second, run)
	said(1, "model/0.weight: 600 of 600 elements differ, by at most 0.", "diff", first, second)
	said(0, file, "convert", run, file)
	said(1, "is a folder", "convert", run, dir)
	said(1, "/none/x.safetensors: no such file", "convert", run, filepath.Join(dir, "none", "x.safetensors"))
	said(0, "no checkpoints in "+empty, "ls", empty)
	said(1, "there is no checkpoint in "+empty, "verify", empty)
	said(0, "step-00000000", "convert", file, again)
	said(1, "step: 0 and 2", "diff", again, run)
	data, err := os.ReadFile(filepath.Join(second, "rank-00001-of-00002.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)-1] ^= 1
	if err := os.WriteFile(filepath.Join(second, "rank-00001-of-00002.safetensors"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	said(1, "corrupt: model/2.weight", "verify", run)
	said(1, "corrupt: model/2.weight", "ls", "--verify", run)
	said(2, "takes 2 paths, got 1", "diff", run)
	said(2, "there is no \"rm\"", "rm", run)
}
