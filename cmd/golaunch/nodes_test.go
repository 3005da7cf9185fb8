package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goddp/goddp/internal/testkit"
)

// agentOf returns a golaunch of a job of several nodes, which all are on this host.
func agentOf(t *testing.T, endpoint string, env []string, args ...string) *exec.Cmd {
	t.Helper()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("the nodes' common secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	return golaunch(t, append(env, "TMPDIR="+t.TempDir()), append([]string{
		"--rdzv-backend=c10d", "--rdzv-endpoint=" + endpoint, "--rdzv-id=job", "--token-file=" + token,
	}, args...)...)
}

// The workers of two nodes reach the store and the coordinator through their agents, and each other by the
// nodes' addresses.
func TestWorkersOfTwoNodesMeet(t *testing.T) {
	_, endpoint := testkit.Port(t)
	outcomes := make([]outcome, 2)
	var wg sync.WaitGroup
	for i := range outcomes {
		// Different values of GODDP_HOST_ID make the workers of different nodes use TCP, not shared memory.
		env := []string{joinVar + "=1", fmt.Sprintf("GODDP_HOST_ID=%d", i)}
		cmd := agentOf(t, endpoint, env, "--nnodes=2", "--nproc-per-node=2", os.Args[0])
		wg.Go(func() { outcomes[i] = finish(t, cmd) })
	}
	wg.Wait()
	for i, got := range outcomes {
		if got.code != 0 {
			t.Errorf("node %d: exit code %d\n%s", i, got.code, got.stderr)
		}
	}
}

// output is a process's output, which a test reads while the process writes it.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// await waits until the output contains text n times.
func (o *output) await(t *testing.T, text string, n int) {
	t.Helper()
	for deadline := time.Now().Add(soon); strings.Count(o.String(), text) < n; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no %d lines with %q in\n%s", n, text, o)
		}
	}
}

// If the agent of one node is killed, the others go on without it within three heartbeats. When the node
// comes back, it is taken in. Neither counts as a restart.
func TestJobGoesOnWithoutAKilledAgent(t *testing.T) {
	_, endpoint := testkit.Port(t)
	end := filepath.Join(t.TempDir(), "end")
	// The heartbeat is long, because an agent that a busy machine keeps from running for three is lost too.
	const beat = 5 * time.Second
	conf := fmt.Sprintf("--rdzv-conf=last_call_timeout=0.2,keep_alive_interval=%v", beat.Seconds())
	script := `trap 'exit 0' TERM; echo "of $WORLD_SIZE, restarts $TORCHELASTIC_RESTART_COUNT"; until [ -e ` + end + ` ]; do sleep 0.05 & wait; done`
	run := func() (*exec.Cmd, *output) {
		out := &output{}
		cmd := agentOf(t, endpoint, nil, "--nnodes=1:3", conf, "bash", "-c", script)
		cmd.Stdout, cmd.Stderr = out, out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd, out
	}
	host, hostOut := run()
	hostOut.await(t, "of 1, restarts 0", 1)
	other, otherOut := run()
	hostOut.await(t, "of 2, restarts 0", 1)
	third, _ := run()
	hostOut.await(t, "of 3, restarts 0", 1)

	killed := time.Now()
	third.Process.Kill()
	third.Wait()
	hostOut.await(t, "lost: its agent ended", 1)
	if took := time.Since(killed); took > 3*beat {
		t.Errorf("the loss was found after %v", took)
	}
	hostOut.await(t, "of 2, restarts 0", 2)
	third, thirdOut := run()
	hostOut.await(t, "of 3, restarts 0", 2)
	if err := os.WriteFile(end, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for i, cmd := range []*exec.Cmd{host, other, third} {
		if err := cmd.Wait(); err != nil {
			t.Errorf("node %d: %v\n%s", i, err, []*output{hostOut, otherOut, thirdOut}[i])
		}
	}
	for deadline := time.Now().Add(soon); len(processes(t, markVar+"="+t.Name())) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("processes %v are left", processes(t, markVar+"="+t.Name()))
		}
	}
}

// If the golaunch that hosts the rendezvous is stopped, another node hosts. When the first one goes on, it joins
// the other node. The job ends once, on both.
func TestStoppedHostIsReplaced(t *testing.T) {
	endpoint := startEtcd(t)
	end := filepath.Join(t.TempDir(), "end")
	script := `trap 'exit 0' TERM; echo "of $WORLD_SIZE"; until [ -e ` + end + ` ]; do sleep 0.05 & wait; done`
	run := func() node {
		n := node{agentOf(t, endpoint, nil, "--rdzv-backend=etcd", "--nnodes=1:2", "--rdzv-conf=last_call_timeout=0.2", "bash", "-c", script), &output{}}
		n.Stdout, n.Stderr = n.out, n.out
		if err := n.Start(); err != nil {
			t.Fatal(err)
		}
		return n
	}
	host := run()
	host.out.await(t, "]: of 1\n", 1)
	other := run()
	host.out.await(t, "]: of 2\n", 1)
	other.out.await(t, "]: of 2\n", 1)

	if err := host.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	other.out.await(t, "]: of 1\n", 1)
	if err := host.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	host.out.await(t, "the host of the rendezvous, this node, is lost: this agent does not host the rendezvous any more", 1)
	for _, n := range []node{host, other} {
		n.out.await(t, "]: of 2\n", 2)
	}
	if err := os.WriteFile(end, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, n := range []node{host, other} {
		if err := n.Wait(); err != nil {
			t.Errorf("%v\n%s", err, n.out)
		}
	}
	expectNone(t, "a process of the job", markVar+"="+t.Name())
}

// node is a running golaunch of a job of several nodes, and its output.
type node struct {
	*exec.Cmd
	out *output
}

// startNode starts a node whose two workers write the number of ranks, and wait beside a process that is no longer
// their child.
func startNode(t *testing.T, endpoint, temp, nnodes string) node {
	t.Helper()
	n := node{agentOf(t, endpoint, nil, "--nnodes="+nnodes, "--nproc-per-node=2", "--rdzv-conf=last_call_timeout=0.2", "bash", "-c",
		`setsid sleep 1000 & echo "of $WORLD_SIZE"; wait`), &output{}}
	n.Env = append(n.Env, "TMPDIR="+temp)
	n.Stdout, n.Stderr = n.out, n.out
	if err := n.Start(); err != nil {
		t.Fatal(err)
	}
	return n
}

// killReaper kills the reaper of a node. It checks how the node ends, and returns why it says that it does.
func (n node) killReaper(t *testing.T) string {
	t.Helper()
	reaper := reaperOf(t, n.Process.Pid)
	if err := syscall.Kill(reaper, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	why := fmt.Sprintf("the reaper (pid %d), the parent of the workers, was killed by SIGKILL\n", reaper)
	_ = n.Wait() // the exit code is checked
	if code := n.ProcessState.ExitCode(); code != 1 || !strings.HasSuffix(n.out.String(), "\ngolaunch: "+why) {
		t.Errorf("exit code %d\n%s", code, n.out)
	}
	return why
}

// expectRoot waits until the node has ended with code 1, by a root cause.
func (n node) expectRoot(t *testing.T, texts ...string) {
	t.Helper()
	_ = n.Wait() // the exit code is checked
	for _, text := range texts {
		if code := n.ProcessState.ExitCode(); code != 1 || !strings.Contains(n.out.String(), text) {
			t.Errorf("exit code %d, want 1 and %q in\n%s", code, text, n.out)
		}
	}
}

// If the reaper of one node is killed, that node leaves, and the others go on without a restart. If the node
// hosts the rendezvous, the job ends on all nodes, by that cause.
func TestKilledReaperOfANode(t *testing.T) {
	_, endpoint := testkit.Port(t)
	temp := t.TempDir()
	host := startNode(t, endpoint, temp, "1:3")
	host.out.await(t, "of 2", 2)
	nodes := []node{startNode(t, endpoint, temp, "1:3"), startNode(t, endpoint, temp, "1:3")}
	for _, n := range nodes {
		n.out.await(t, "of 6", 2)
	}
	why := nodes[0].killReaper(t)
	for _, n := range []node{host, nodes[1]} {
		n.out.await(t, ") left: "+why, 1)
		n.out.await(t, "of 4", 2)
		if strings.Contains(n.out.String(), "restart") {
			t.Errorf("the loss of a node counts as a restart:\n%s", n.out)
		}
	}
	why = host.killReaper(t)
	nodes[1].expectRoot(t, "  node      : 0\n", "  error     : left: "+why, "only --rdzv-backend=etcd can replace it")
	expectNone(t, "a process of the job", markVar+"="+t.Name())
	if left, err := os.ReadDir(temp); err != nil || len(left) != 0 {
		t.Errorf("temporary files are left: %v, %v", left, err)
	}
}

// If too few nodes are left without the one whose reaper was killed, the job ends by that cause.
func TestKilledReaperOfANodeThatIsNeeded(t *testing.T) {
	_, endpoint := testkit.Port(t)
	temp := t.TempDir()
	host, other := startNode(t, endpoint, temp, "2"), startNode(t, endpoint, temp, "2")
	host.out.await(t, "of 4", 2)
	other.out.await(t, "of 4", 2)
	if strings.Contains(other.out.String(), "this is node 0 of 2") {
		host, other = other, host
	}
	why := other.killReaper(t)
	host.expectRoot(t, "  node      : 1\n", "  error     : left: "+why, "too few nodes are left: 1 of at least 2\n")
	expectNone(t, "a process of the job", markVar+"="+t.Name())
}
