package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/etcdtest"
)

// agentOf returns a golaunch of a job of several nodes, which all are on this host.
func agentOf(t *testing.T, endpoint string, args ...string) *exec.Cmd {
	t.Helper()
	return golaunch(t, []string{"TMPDIR=" + t.TempDir()}, append([]string{
		"--rdzv-backend=c10d", "--rdzv-endpoint=" + endpoint, "--rdzv-id=job", "--token-file=" + writeFile(t, "token", "the nodes' common secret"),
	}, args...)...)
}

// With --insecure, nodes need no token.
func TestNodesWithoutAToken(t *testing.T) {
	_, endpoint := testkit.Port(t)
	var nodes []*testkit.Process
	for range 2 {
		nodes = append(nodes, testkit.Start(t, golaunch(t, nil, "--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint="+endpoint, "--insecure", "true")))
	}
	for i, p := range nodes {
		if code := p.Wait(); code != 0 {
			t.Errorf("node %d: exit code %d", i, code)
		}
	}
}

// Too few nodes end the job when the time to join is over, with a message that says how many came.
func TestTooFewNodes(t *testing.T) {
	_, endpoint := testkit.Port(t)
	got := testkit.Run(t, agentOf(t, endpoint, "--nnodes=2", "--rdzv-conf=join_timeout=0.2", "true"))
	if want := (testkit.Result{Code: 1, Stderr: "golaunch: too few nodes joined: 1 of at least 2 within 0.2 s (--rdzv-conf join_timeout=0.2)\n"}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// Jobs of one and of two nodes run on a host whose loopback interface has no IPv4. An endpoint there is refused at once.
func TestLoopbackWithoutIPv4(t *testing.T) {
	testkit.Long(t)
	testkit.Need(t, testkit.Root, testkit.Command("unshare"), testkit.Command("ip"))
	toy := filepath.Join(testkit.Build(t, "./examples/toy"), "toy")
	nodes := fmt.Sprintf(`"$0" --nnodes 2 --rdzv-backend c10d --rdzv-id job --token-file %s --rdzv-endpoint`, writeFile(t, "token", "the nodes' common secret"))
	for script, want := range map[string]string{
		`"$0" --nproc-per-node 2 ` + toy:                                 "rank 1: reduced dy/dw: 3.5",
		nodes + " ::1 " + toy + " & " + nodes + " ::1 " + toy + "; wait": "rank 1: reduced dy/dw: 3.5",
		nodes + " 127.0.0.1 " + toy:                                      "golaunch: --rdzv-endpoint 127.0.0.1:29400: this host has no loopback address 127.0.0.1; it has ::1",
	} {
		cmd := golaunch(t, []string{"GODDP_DEVICE=cpu"})
		host := exec.CommandContext(t.Context(), "unshare", "-n", "bash", "-c", "ip link set lo up; ip addr del 127.0.0.1/8 dev lo; "+script, cmd.Path)
		host.Env = cmd.Env
		if got := testkit.Run(t, host); !strings.Contains(got.Stdout+got.Stderr, want) {
			t.Errorf("%s: %+v, want %q", script, got, want)
		}
	}
}

// A node of another program, or of other arguments, is refused, and says both commands. The folder of the program may
// differ.
func TestNodesRunOneCommand(t *testing.T) {
	_, endpoint := testkit.Port(t)
	node := func(name string, args ...string) *exec.Cmd {
		program := writeFile(t, name, "#!/bin/sh\necho of $WORLD_SIZE\n")
		if err := os.Chmod(program, 0o755); err != nil {
			t.Fatal(err)
		}
		return agentOf(t, endpoint, append([]string{"--nnodes=2", program}, args...)...)
	}
	nodes := []*testkit.Process{testkit.Start(t, node("train", "--lr", "1 2"))}
	for deadline := time.Now().Add(testkit.Soon); ; time.Sleep(10 * time.Millisecond) { // until it hosts the rendezvous
		if c, err := net.Dial("tcp", endpoint); err == nil {
			c.Close()
			break
		} else if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	for command, cmd := range map[string]*exec.Cmd{`train --lr "1 3"`: node("train", "--lr", "1 3"), `test --lr "1 2"`: node("test", "--lr", "1 2")} {
		want := fmt.Sprintf(`the rendezvous refused this node: it was started with the program and arguments [%s], the host of the rendezvous with [train --lr "1 2"]; `, command)
		if got := testkit.Run(t, cmd); got.Code != 1 || !strings.Contains(got.Stderr, want) {
			t.Errorf("got %+v, want %q", got, want)
		}
	}
	nodes = append(nodes, testkit.Start(t, node("train", "--lr", "1 2")))
	for i, p := range nodes {
		if code := p.Wait(); code != 0 || !strings.Contains(p.Stdout(), "of 2\n") {
			t.Errorf("node %d: exit code %d", i, code)
		}
	}
}

// The nodes elect the host in etcd.
func TestEtcdNodes(t *testing.T) {
	testkit.Long(t)
	endpoint := strings.TrimPrefix(etcdtest.Start(t, 1).Endpoints[0], "http://")
	t.Setenv("PATH", testkit.Build(t, "cmd/golaunch-etcd")+":"+os.Getenv("PATH"))
	var nodes []*testkit.Process
	for range 2 {
		nodes = append(nodes, testkit.Start(t, agentOf(t, endpoint, "--nnodes=2", "--rdzv-backend=etcd", "bash", "-c", `echo "of $WORLD_SIZE, $TORCHELASTIC_RUN_ID"`)))
	}
	for i, p := range nodes {
		if code := p.Wait(); code != 0 || !strings.Contains(p.Stdout(), "of 2, job\n") {
			t.Errorf("node %d: exit code %d, stdout %q", i, code, p.Stdout())
		}
	}
}

// If the reaper of one node is killed, that node leaves, and the others go on without a restart. If the node
// hosts the rendezvous, the job ends on all nodes, by that cause.
func TestKilledReaperOfANode(t *testing.T) {
	testkit.Long(t)
	_, endpoint := testkit.Port(t)
	temp := t.TempDir()
	// The workers wait beside a process that is no longer their child.
	run := func(ranks int) *testkit.Process {
		cmd := agentOf(t, endpoint, "--nnodes=1:3", "--nproc-per-node=2", "--rdzv-conf=last_call_timeout=0.2", "bash", "-c", `setsid sleep 1000 & echo "of $WORLD_SIZE"; wait`)
		cmd.Env = append(cmd.Env, "TMPDIR="+temp)
		p := testkit.Start(t, cmd)
		if ranks > 0 {
			p.Await(fmt.Sprint("of ", ranks), 2)
		}
		return p
	}
	killReaper := func(p *testkit.Process) (why string) {
		reaper := reaperOf(t, p)
		kill(t, reaper, syscall.SIGKILL)
		why = fmt.Sprintf("the reaper (pid %d), the parent of the workers, was killed by SIGKILL\n", reaper)
		if code := p.Wait(); code != 1 || !strings.HasSuffix(p.Stderr(), "\ngolaunch: "+why) {
			t.Errorf("exit code %d, want 1, and at the end %q", code, why)
		}
		return why
	}
	host := run(2)
	nodes := []*testkit.Process{run(0), run(0)}
	for _, p := range nodes {
		p.Await("of 6", 2)
	}
	killed := time.Now()
	why := killReaper(nodes[0])
	for _, p := range []*testkit.Process{host, nodes[1]} {
		p.AwaitAfter(killed, "of 4", 2) // there may have been such a round before the third node came
		p.Await(regexp.QuoteMeta(") left: "+strings.TrimSpace(why)), 1)
		p.Expect("restart", 0)
	}
	why = killReaper(host)
	if code := nodes[1].Wait(); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	for _, text := range []string{"  node      : 0\n", "  error     : left: " + why, "only --rdzv-backend=etcd can replace it"} {
		if said := nodes[1].Stderr(); !strings.Contains(said, text) {
			t.Errorf("%q is missing in\n%s", text, said)
		}
	}
	expectNothingLeft(t, temp)
}
