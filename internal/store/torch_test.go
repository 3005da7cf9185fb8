package store

import (
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"testing"

	"github.com/goddp/goddp/internal/testkit"
)

// The tests of this file run real PyTorch processes.

// startTorch starts testdata/torch_store.py. next lets it go on when it waits. It skips the test if Python or PyTorch is
// missing.
func startTorch(t *testing.T, mode, addr string, env ...string) (p *testkit.Process, next func()) {
	t.Helper()
	testkit.Need(t, testkit.Command(testkit.Interpreter()))
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(testkit.Interpreter(), "testdata/torch_store.py", mode, host, port)
	cmd.Env = append(testkit.Env("OMP_NUM_THREADS=1", "MASTER_ADDR="+host, "MASTER_PORT="+port), env...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p = testkit.Start(t, cmd)
	if got := p.Await("^with(out)? torch", 1).Text; strings.HasPrefix(got, "without") { // the import takes seconds: it is not tried before
		t.Skip("needs PyTorch: ", got)
	}
	return p, func() { fmt.Fprintln(stdin) }
}

// finish expects the last line of a process, and a clean exit.
func finish(t *testing.T, p *testkit.Process) {
	t.Helper()
	p.Await("^done", 1)
	if code := p.Wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestTorchClient(t *testing.T) {
	lines, logger := newLog()
	s := listen(t, &ServerOptions{Logger: logger})
	store := dial(t, s.Addr(), nil)
	ctx := withPatience(t)
	if err := store.Set(ctx, "go", []byte("from go")); err != nil {
		t.Fatal(err)
	}
	p, next := startTorch(t, "client", s.Addr())
	p.Await("^timed out$", 1)
	for key, want := range map[string]string{"py": "from python", "n": "-2"} {
		if v, err := store.Get(ctx, key); err != nil || string(v) != want {
			t.Errorf("%s is %q, %v; want %q", key, v, err, want)
		}
	}
	if v, err := Prefix(Prefix(store, "inner"), "outer").Get(ctx, "k"); err != nil || string(v) != "prefixed" {
		t.Errorf("prefixed key is %q, %v", v, err)
	}
	if err := store.Set(ctx, "late", nil); err != nil {
		t.Error(err)
	}
	next()
	p.Await("^blocking$", 1)
	if err := s.Local().Set(ctx, "blocked on", []byte("woken")); err != nil {
		t.Error(err)
	}
	finish(t, p)
	s.Close()
	if len(lines) > 0 {
		t.Errorf("the server complained: %s", <-lines)
	}
}

// A Go process joins a job whose store a PyTorch process hosts. That process waits for
// its workers.
func TestTorchServer(t *testing.T) {
	testkit.Long(t)
	_, addr := testkit.Port(t)
	p, next := startTorch(t, "serve", addr)
	legacy := len(p.Matches(`^with torch (1|2\.0)\.`)) > 0
	opts := ClientOptions{Announce: true, Legacy: legacy, Member: &members("sixteen letters!")[0]}
	if _, err := Dial(withPatience(t), addr, &opts); !errors.Is(err, errPyTorchStore) {
		t.Errorf("a store that has to be ours: %v", err)
	}
	opts.AnyStore, opts.Legacy = true, false // the client finds out
	store := dial(t, addr, &opts)
	if !store.IsPyTorchStore() {
		t.Error("the store is taken for ours")
	}
	ctx := withPatience(t)
	if v, err := store.Get(ctx, "py"); err != nil || string(v) != "from python" {
		t.Errorf("py is %q, %v", v, err)
	}
	if err := store.Set(ctx, "go", []byte("from go")); err != nil {
		t.Error(err)
	}
	if n, err := store.Add(ctx, "n", 41); err != nil || n != 41 {
		t.Errorf("n is %d, %v", n, err)
	}
	if v, err := store.CompareAndSet(ctx, "n", []byte("41"), []byte("42")); err != nil || string(v) != "42" {
		t.Errorf("n is %q, %v", v, err)
	}
	if ok, err := store.Check(ctx, "n", "none"); err != nil || ok {
		t.Errorf("check: %v, %v", ok, err)
	}
	if ok, err := store.Delete(ctx, "n"); err != nil || !ok {
		t.Errorf("delete: %v, %v", ok, err)
	}
	if n, err := store.NumKeys(ctx); err != nil || n != 3 { // init/ py go
		t.Errorf("%d keys, %v", n, err)
	}
	next()
	finish(t, p)
}
