package store

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/goddp/goddp/internal/testkit"
)

// The tests of this file run real PyTorch processes.

func torchPython(t *testing.T) string {
	t.Helper()
	testkit.Need(t, testkit.Python("import torch.distributed as d; d.TCPStore"))
	return testkit.Interpreter()
}

// A torchProcess is a running testdata/torch_store.py.
type torchProcess struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Reader
	stderr strings.Builder
}

func startTorch(t *testing.T, python, mode, addr string, env ...string) *torchProcess {
	t.Helper()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	p := &torchProcess{t: t, cmd: exec.CommandContext(withPatience(t), python, "testdata/torch_store.py", mode, host, port)}
	p.cmd.Env = append(os.Environ(), "OMP_NUM_THREADS=1", "MASTER_ADDR="+host, "MASTER_PORT="+port)
	p.cmd.Env = append(p.cmd.Env, env...)
	p.cmd.Stderr = &p.stderr
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.stdout = bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return p
}

// expect reads the next line, which must begin with want, and returns the rest.
func (p *torchProcess) expect(want string) string {
	line, err := p.stdout.ReadString('\n')
	rest, ok := strings.CutPrefix(line, want)
	if err != nil || !ok {
		p.stdin.Close()
		p.cmd.Wait()
		p.t.Errorf("torch says %q, %v; want %q; stderr:\n%s", line, err, want, p.stderr.String())
	}
	return strings.TrimSpace(rest)
}

// finish expects the last line and a clean exit.
func (p *torchProcess) finish() {
	version := p.expect("done")
	p.stdin.Close()
	if err := p.cmd.Wait(); err != nil && !p.t.Failed() {
		p.t.Errorf("torch: %v; stderr:\n%s", err, p.stderr.String())
	}
	p.t.Logf("with torch %s", version)
}

func TestTorchClient(t *testing.T) {
	python := torchPython(t)
	lines, logger := newLog()
	s := listen(t, &ServerOptions{Logger: logger})
	store := dial(t, s.Addr(), nil)
	ctx := withPatience(t)
	if err := store.Set(ctx, "go", []byte("from go")); err != nil {
		t.Fatal(err)
	}
	p := startTorch(t, python, "client", s.Addr())
	p.expect("timed out")
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
	fmt.Fprintln(p.stdin)
	p.expect("blocking")
	if err := s.Local().Set(ctx, "blocked on", []byte("woken")); err != nil {
		t.Error(err)
	}
	p.finish()
	s.Close()
	if len(lines) > 0 {
		t.Errorf("the server complained: %s", <-lines)
	}
}

// A Go process joins a job whose store a PyTorch process hosts. That process waits for
// its workers.
func TestTorchServer(t *testing.T) {
	python := torchPython(t)
	_, addr := testkit.Port(t)
	p := startTorch(t, python, "serve", addr)
	legacy, err := exec.CommandContext(t.Context(), python, "-c",
		"import torch; v = torch.__version__.split('.'); print((int(v[0]), int(v[1])) < (2, 1))").Output()
	if err != nil {
		t.Fatal(err)
	}
	opts := ClientOptions{Announce: true, Legacy: strings.TrimSpace(string(legacy)) == "True", Member: &members("sixteen letters!")[0]}
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
	p.finish()
}

// Two PyTorch ranks use a store that this process hosts, as under a launcher.
func TestTorchProcessGroup(t *testing.T) {
	python := torchPython(t)
	s := listen(t, nil)
	var wg sync.WaitGroup
	for rank := range 2 {
		p := startTorch(t, python, "worker", s.Addr(), "TORCHELASTIC_USE_AGENT_STORE=True",
			"TORCHELASTIC_RESTART_COUNT=0", "WORLD_SIZE=2", fmt.Sprintf("RANK=%d", rank), "GLOO_SOCKET_IFNAME=lo")
		wg.Go(p.finish)
	}
	wg.Wait()
	// The ranks wrote their addresses, which shows that they used the store.
	if n, err := s.Local().NumKeys(t.Context()); err != nil || n == 0 {
		t.Errorf("%d keys, %v", n, err)
	}
}
