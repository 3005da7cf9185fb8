package launcher

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/goddp/goddp/internal/testkit"
)

// survivorNodes starts golaunch on some nodes, all on this host. A node has two workers, see testSurvivor. start starts
// another node.
func survivorNodes(t *testing.T, nodes string, n int, mode OnFailure, fates ...string) (agents []*testkit.Process, start func() *testkit.Process) {
	t.Helper()
	testkit.Long(t)
	_, endpoint := testkit.Port(t)
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("the nodes' common secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	golaunch := filepath.Join(testkit.Build(t, "cmd/golaunch"), "golaunch")
	worker := testkit.Self(t, "survivor", fates...)
	start = func() *testkit.Process {
		cmd := exec.Command(golaunch, slices.Concat([]string{
			"--nnodes", nodes, "--nproc-per-node", "2", "--on-failure", mode.String(), "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint,
			"--rdzv-conf", "keep_alive_interval=1", "--token-file", token}, worker.Args)...)
		cmd.Env = append(worker.Env, "GORACE=atexit_sleep_ms=0")
		return testkit.Start(t, cmd)
	}
	for i := range n {
		agents = append(agents, start())
		if i == 0 { // it hosts the rendezvous, so it is node 0
			agents[0].Await("waiting: this node has joined", 1)
		}
	}
	for _, a := range agents {
		a.Await("epoch 1: rank", 2)
	}
	line := func(a *testkit.Process) string { return a.Await("round 0: this is node", 1).Text }
	slices.SortFunc(agents[1:], func(a, b *testkit.Process) int { return strings.Compare(line(a), line(b)) })
	return agents, start
}

func endsWith(t *testing.T, code int, agents ...*testkit.Process) {
	t.Helper()
	for _, a := range agents {
		if got := a.Wait(); got != code {
			t.Errorf("exit code %d, want %d", got, code)
		}
	}
}

// The other nodes go on without one that is lost, in the same round.
func TestShrinkByANode(t *testing.T) {
	agents, _ := survivorNodes(t, "3", 3, Shrink, "2:*:exit0")
	agents[1].Cmd.Process.Kill()
	for i, a := range agents {
		if i != 1 {
			a.Await(`golaunch: node 1 \(.*\) lost: its agent ended; its workers are dead for certain in `, 1)
			a.Await("golaunch: epoch 2: 4 workers at step 100", 1)
		}
	}
	endsWith(t, 0, agents[0], agents[2])
	agents[0].Expect("round 1", 0)
}

// A worker is replaced on its node, also if that has no other one. A node that joins takes the place of a lost one.
func TestReplaceOnNodes(t *testing.T) {
	agents, start := survivorNodes(t, "2", 2, Replace, "1:2:killed", "1:3:killed", "rejoined:*:exit0")
	agents[1].Await("golaunch: worker 4 started in place of worker [23]", 1)
	agents[0].Await(`golaunch: worker 2 of .* was killed by SIGKILL`, 1)
	agents[0].Await("golaunch: epoch .* 4 workers at step", 1)
	agents[1].Cmd.Process.Kill()
	agents[1].Wait()
	agents[0].Await("golaunch: epoch .*: 2 workers at step", 1)
	late := start()
	late.Await("round 0: this is node 1 of 2, with ranks 2 to 3 of 4", 1)
	late.Await(`golaunch: worker 6 started in place of worker [45] \(attempt 1 of 3\)`, 1)
	agents[0].Await(`golaunch: node 1 \(.*\) joined, and starts 2 workers`, 1)
	agents[0].Await("golaunch: epoch .* 4 workers at step", 2)
	endsWith(t, 0, agents[0], late)
}

// SIGTERM to one node takes its workers out of the job. To all nodes, it ends the job.
func TestPlannedLeave(t *testing.T) {
	agents, _ := survivorNodes(t, "3", 3, Replace)
	agents[2].Cmd.Process.Signal(syscall.SIGTERM)
	agents[2].Await("golaunch: SIGTERM: leaving the job", 1)
	agents[2].Await("released", 2)
	endsWith(t, 128+int(syscall.SIGTERM), agents[2])
	for _, a := range agents[:2] {
		a.Await("golaunch: epoch 2: 4 workers at step 100", 1)
		a.Await("epoch 2: rank", 2)
		a.Await(`golaunch: node 2 \(.*\) left: SIGTERM$`, 1)
	}
	for _, a := range agents[:2] {
		a.Cmd.Process.Signal(syscall.SIGTERM)
	}
	endsWith(t, 128+int(syscall.SIGTERM), agents[0])
	for _, a := range agents[:2] {
		a.Await("golaunch: SIGTERM: stopping rank", 1)
		a.Expect("leaving the job", 0)
	}
}

// The loss of the host of the rendezvous ends the job.
func TestHostOfSurvivorsIsLost(t *testing.T) {
	agents, _ := survivorNodes(t, "2", 2, Replace)
	agents[0].Cmd.Process.Kill()
	agents[1].Await("only --rdzv-backend=etcd can replace it", 1)
	endsWith(t, 1, agents[1])
}
