package hosts

import (
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/netns"
)

// startTorchrun starts a torchrun agent on a host.
func startTorchrun(t *testing.T, h *netns.Host, args ...string) *testkit.Process {
	t.Helper()
	testkit.Need(t, testkit.Python("import torch.distributed.run"))
	python := testkit.Interpreter()
	// PyTorch 1.13 cannot parse the default of --redirects and --tee with Python 3.11.
	agent := []string{"-m", "torch.distributed.run", "--redirects", "2", "--tee", "1", "--log_dir", t.TempDir(), "--no_python"}
	return start(t, h, []string{"PYTHONUNBUFFERED=1"}, python, append(agent, args...)...)
}

// TestGoWorkersUnderTorchrun trains on two hosts whose agents are torchrun's.
func TestGoWorkersUnderTorchrun(t *testing.T) {
	inMakeHosts(t)
	n := netns.New(t, 2, 1)
	j := newJob(t, n)
	for node, h := range n.Hosts {
		j.agents[node] = startTorchrun(t, h, append([]string{"--nnodes", "2", "--node_rank", strconv.Itoa(node),
			"--master_addr", n.Hosts[0].Addr(0).String(), "--master_port", "29500"}, j.worker...)...)
	}
	j.trains(2, 1, 0, 1)
	j.finish()
	j.ends(2, 0, 1)
}

// TestPyTorchWorkersOnTwoHosts has PyTorch's workers reduce a tensor by Gloo.
func TestPyTorchWorkersOnTwoHosts(t *testing.T) {
	inMakeHosts(t)
	testkit.Need(t, testkit.Python("import torch.distributed"))
	python := testkit.Interpreter()
	script, err := filepath.Abs("testdata/gloo.py")
	if err != nil {
		t.Fatal(err)
	}
	n := netns.New(t, 2, 1)
	j := newJob(t, n)
	j.c10d("2", endpoint(n.Hosts[0].Addr(0)))
	j.flags = append(j.flags, "--nproc-per-node", "2",
		"--rdzv-conf", "keep_alive_interval=5") // importing PyTorch takes all cores, and this test is about no loss
	j.worker = []string{"--no-python", "env", "GLOO_SOCKET_IFNAME=eth0", python, script}
	j.start(0, 1)
	for node := range n.Hosts {
		ends(t, j.agents[node], 0)
		j.agents[node].Expect(`rank \d of 4 has the sum 10`, 2)
	}
}

// TestTorchrunMeetsGolaunch has an agent of torchrun come to the rendezvous of golaunch. The job goes on.
func TestTorchrunMeetsGolaunch(t *testing.T) {
	inMakeHosts(t)
	n := netns.New(t, 3, 1)
	j := newJob(t, n)
	j.c10d("2", endpoint(n.Hosts[0].Addr(0)))
	j.flags = append(j.flags, "--rdzv-conf", "join_timeout=60") // importing PyTorch takes long on a busy machine
	j.start(0)
	awaitPorts(t, n.Hosts[0], 1)
	other := startTorchrun(t, n.Hosts[2], "--nnodes", "2", "--rdzv_backend", "c10d", "--rdzv_id", "job",
		"--rdzv_endpoint", endpoint(n.Hosts[0].Addr(0)), "--rdzv_conf", "is_host=0,read_timeout=5", "true")
	j.agents[0].Await("it speaks the protocol of PyTorch's TCPStore: a torchrun agent", 1)
	j.start(1)
	j.trains(2, 1, 0, 1)
	ends(t, other, 1)
	j.finish()
	j.ends(2, 0, 1)
	j.agents[0].Expect("TCPStore", 1)
}

// TestGolaunchMeetsTorchrun has golaunch come to the rendezvous of torchrun. It says what it waits for.
func TestGolaunchMeetsTorchrun(t *testing.T) {
	inMakeHosts(t)
	n := netns.New(t, 2, 1)
	host := startTorchrun(t, n.Hosts[0], "--nnodes", "2", "--rdzv_backend", "c10d", "--rdzv_id", "job",
		"--rdzv_endpoint", endpoint(n.Hosts[0].Addr(0)), "--rdzv_conf", "is_host=1,join_timeout=20", "true")
	awaitPorts(t, n.Hosts[0], 1)
	j := newJob(t, n)
	j.c10d("2", endpoint(n.Hosts[0].Addr(0)))
	j.flags = append(j.flags, "--rdzv-conf", "join_timeout=5")
	j.start(1)
	ends(t, j.agents[1], 1)
	j.agents[1].Expect("waiting: .* it ended the connection during the handshake, as torchrun agents do", 1)
	j.agents[1].Expect("no host of the rendezvous was found in time: it ended the connection during the handshake", 1)
	host.Cmd.Process.Signal(syscall.SIGTERM)
}
