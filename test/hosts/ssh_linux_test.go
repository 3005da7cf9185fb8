package hosts

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/netns"
)

// sshJob is a job that golaunch starts from the last host of a network on all others, by ssh.
type sshJob struct {
	t   *testing.T
	net *netns.Network
	ssh string // the command of --ssh
}

// newSSHJob starts sshd on all hosts but the last one, which has their names in its configuration: a, b, ...
func newSSHJob(t *testing.T, hosts int) *sshJob {
	t.Helper()
	const sshd = "/usr/sbin/sshd" // it starts itself by its path
	testkit.Need(t, testkit.Root, testkit.Command(sshd))
	j := &sshJob{t: t, net: netns.New(t, hosts+1, 1)}
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	for _, key := range []string{"host", "user"} {
		if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path(key)).CombinedOutput(); err != nil {
			t.Fatalf("ssh-keygen: %v: %s", err, out)
		}
	}
	if err := os.MkdirAll("/run/sshd", 0o755); err != nil { // sshd's empty folder
		t.Fatal(err)
	}
	config := fmt.Sprintf("IdentityFile %s\nStrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\nBatchMode yes\n", path("user"))
	for i := range hosts {
		addr := j.net.Hosts[i].Addr(0)
		config += fmt.Sprintf("Host %c\nHostName %s\n", 'a'+i, addr)
		daemon := exec.Command(sshd, "-D", "-e", "-f", "/dev/null", "-h", path("host"), "-o", "ListenAddress="+addr.String(), "-o", "PidFile=none",
			"-o", "UsePAM=no", "-o", "StrictModes=no", "-o", "PermitRootLogin=yes", "-o", "AuthorizedKeysFile="+path("user.pub"))
		testkit.StartBy(t, daemon, func() error { return j.net.Hosts[i].Start(daemon) })
	}
	if err := os.WriteFile(path("config"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	j.ssh = "ssh -F " + path("config")
	for i := range hosts { // until all answer
		answers := func() bool {
			cmd := exec.Command("ssh", "-F", path("config"), string(rune('a'+i)), "true")
			return j.net.Hosts[hosts].Start(cmd) == nil && cmd.Wait() == nil
		}
		for deadline := time.Now().Add(testkit.Soon); !answers(); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("sshd on host %d does not answer in %v", i, testkit.Soon)
			}
		}
	}
	return j
}

// start starts golaunch on the last host.
func (j *sshJob) start(args ...string) *testkit.Process {
	j.t.Helper()
	return start(j.t, j.net.Hosts[len(j.net.Hosts)-1], nil, program(j.t, "golaunch"), append([]string{"--ssh", j.ssh}, args...)...)
}

// awaitNothingLeft checks that golaunch and its workers are gone from all hosts within 20 seconds.
func (j *sshJob) awaitNothingLeft() {
	j.t.Helper()
	left := func() (found []string) {
		for _, h := range j.net.Hosts {
			for _, p := range h.Processes() {
				if name := filepath.Base(p.Args[0]); name == "golaunch" || name == "worker" || name == "ssh" {
					found = append(found, fmt.Sprintf("%s: %v", h.Name(), p))
				}
			}
		}
		return found
	}
	const limit = 20 * time.Second
	began := time.Now()
	for len(left()) > 0 {
		if time.Since(began) > limit {
			j.t.Errorf("left over after %v: %v", limit, left())
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	j.t.Logf("nothing was left after %v", time.Since(began).Round(time.Millisecond))
}

// find returns the process of a host whose command contains a text.
func (j *sshJob) find(host int, text string) netns.Process {
	j.t.Helper()
	for _, p := range j.net.Hosts[host].Processes() {
		if strings.Contains(strings.Join(p.Args, " "), text) {
			return p
		}
	}
	j.t.Fatalf("no process on host %d has %q: %v", host, text, j.net.Hosts[host].Processes())
	return netns.Process{}
}

// TestJobBySSH starts a job on three hosts from a fourth one, and checks how it ends in each of several ways.
func TestJobBySSH(t *testing.T) {
	j := newSSHJob(t, 3)
	worker := program(t, "worker")
	t.Run("to its end", func(t *testing.T) {
		p := j.start("--hosts", "a:2,b,c:2", worker, "-steps", "20")
		ends(t, p, 0)
		p.Expect(`rank \d of 5 on host[012] ends at step 20`, 5)
		j.awaitNothingLeft()
	})
	train := func() *testkit.Process {
		p := j.start("--hosts", "a,b,c", "--nproc-per-node", "2", worker, "-pause", "5ms")
		p.Await(`trains from step 0`, 6)
		return p
	}
	t.Run("a worker is killed", func(t *testing.T) {
		p := train()
		syscall.Kill(j.find(1, "worker -pause").PID, syscall.SIGKILL)
		ends(t, p, 128+int(syscall.SIGKILL))
		p.Expect("Root Cause", 1)
		p.Expect(`^  node      : 1`, 1)
		j.awaitNothingLeft()
	})
	t.Run("Ctrl-C", func(t *testing.T) {
		inMakeHosts(t)
		p := train()
		p.Cmd.Process.Signal(syscall.SIGINT)
		ends(t, p, 128+int(syscall.SIGINT))
		p.Expect(`ends at step`, 6) // they finished their step
		j.awaitNothingLeft()
	})
	t.Run("golaunch is killed", func(t *testing.T) {
		inMakeHosts(t)
		p := train()
		p.Cmd.Process.Kill()
		j.awaitNothingLeft()
	})
	t.Run("an sshd is killed", func(t *testing.T) {
		inMakeHosts(t)
		p := train()
		syscall.Kill(j.find(2, "sshd: root@notty").PID, syscall.SIGKILL)
		ends(t, p, 1)
		p.Expect("host c: ssh failed: no connection, or it was lost", 1)
		j.awaitNothingLeft()
	})
	t.Run("a host is not there", func(t *testing.T) {
		inMakeHosts(t)
		p := j.start("--hosts", "a,nobody", worker)
		ends(t, p, 1)
		p.Expect("host nobody: ssh failed", 1)
		j.awaitNothingLeft()
	})
}
