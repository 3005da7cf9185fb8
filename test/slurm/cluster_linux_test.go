package slurm

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"text/template"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/netns"
)

func TestMain(m *testing.M) { testkit.Main(m, nil) }

// cluster is Slurm on a network: the controller on host 0, and a compute node on every other host, which has
// eight cores and as many GPUs as its number says. The GPUs are device files that no test opens.
type cluster struct {
	t   *testing.T
	net *netns.Network
	dir string
	env []string
}

// config is slurm.conf, for a cluster without a shared key, accounts and control groups.
var config = template.Must(template.New("").Parse(`ClusterName=test
SlurmctldHost=host0({{.Addr 0}})
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
StateSaveLocation={{.Dir}}/state
SlurmdSpoolDir={{.Dir}}/spool.%n
SlurmctldPidFile={{.Dir}}/slurmctld.pid
SlurmdPidFile={{.Dir}}/slurmd.%n.pid
SlurmctldLogFile={{.Dir}}/slurmctld.log
SlurmdLogFile={{.Dir}}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
GresTypes=gpu
SchedulerParameters=sched_interval=2,bf_interval=2
ReturnToService=2
KillWait=5
SlurmdTimeout=6
MessageTimeout=10
JobRequeue=1
PropagateResourceLimits=NONE
SlurmdParameters=config_overrides
{{range .Nodes}}NodeName=host{{.}} NodeAddr={{$.Addr .}} CPUs=8 RealMemory=1000 Gres=gpu:{{.}}
{{end}}PartitionName=all Nodes=ALL Default=YES MaxTime=10 State=UP OverSubscribe=NO
`))

// settings are what config and the other files are made of.
type settings struct {
	Dir   string
	Nodes []int
	net   *netns.Network
}

func (s settings) Addr(host int) string { return s.net.Hosts[host].Addr(0).String() }

// newCluster starts a cluster of compute nodes, which the end of the test ends.
func newCluster(t *testing.T, nodes int) *cluster {
	t.Helper()
	testkit.Long(t)
	testkit.Need(t, testkit.Command("slurmctld"), testkit.Command("slurmd"), testkit.Command("srun"))
	programs := testkit.Build(t, "cmd/golaunch", "test/hosts/worker")
	c := &cluster{t: t, net: netns.New(t, nodes+1, 1), dir: t.TempDir()}
	s := settings{Dir: c.dir, net: c.net}
	hosts, gpus := "127.0.0.1 localhost\n", ""
	for i := range c.net.Hosts {
		hosts += fmt.Sprintf("%s host%d\n", s.Addr(i), i)
		if i > 0 {
			s.Nodes = append(s.Nodes, i)
			gpus += fmt.Sprintf("NodeName=host%d Name=gpu File=%s/gpu[0-%d]\n", i, c.dir, i-1)
			if err := unix.Mknod(c.path(fmt.Sprintf("gpu%d", i-1)), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))); err != nil { // as /dev/null
				t.Skipf("mknod: %v", err)
			}
		}
	}
	var conf bytes.Buffer
	if err := config.Execute(&conf, s); err != nil {
		t.Fatal(err)
	}
	c.write("slurm.conf", conf.String())
	c.write("gres.conf", gpus)
	c.write("cgroup.conf", "CgroupPlugin=cgroup/v1\n")
	c.write("hosts", hosts)
	c.env = append(os.Environ(), "SLURM_CONF="+c.path("slurm.conf"), "GODDP_DEVICE=cpu", "PATH="+programs+":"+os.Getenv("PATH"))
	c.start(0, "slurmctld", "-D", "-c")
	for i := range nodes {
		c.start(i+1, "slurmd", "-D")
	}
	t.Cleanup(func() {
		if t.Failed() {
			logs, _ := filepath.Glob(c.path("*.log"))
			for _, path := range logs {
				text, _ := os.ReadFile(path)
				t.Logf("%s:\n%s", filepath.Base(path), text)
			}
		}
	})
	c.await("all nodes idle", func() bool { return strings.Count(c.run("sinfo", "-h", "-N", "-o", "%t"), "idle") == nodes })
	return c
}

func (c *cluster) path(name string) string { return filepath.Join(c.dir, name) }

func (c *cluster) write(name, text string) string {
	c.t.Helper()
	if err := os.WriteFile(c.path(name), []byte(text), 0o700); err != nil {
		c.t.Fatal(err)
	}
	return c.path(name)
}

// command returns a command that finds the hosts by their names.
func (c *cluster) command(args ...string) *exec.Cmd {
	script := `mount --bind "$0" /etc/hosts && exec "$@"`
	cmd := exec.Command("unshare", append([]string{"--mount", "sh", "-c", script, c.path("hosts")}, args...)...)
	cmd.Env, cmd.Dir = c.env, c.dir
	return cmd
}

// start starts a command on a host.
func (c *cluster) start(host int, args ...string) *testkit.Process {
	c.t.Helper()
	cmd := c.command(args...)
	return testkit.StartBy(c.t, cmd, func() error { return c.net.Hosts[host].Start(cmd) })
}

// run runs a command on the controller's host and returns what it wrote, also if the command fails.
func (c *cluster) run(args ...string) string {
	c.t.Helper()
	cmd := c.command(args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := c.net.Hosts[0].Start(cmd); err != nil {
		c.t.Fatal(err)
	}
	defer time.AfterFunc(testkit.Soon, func() { cmd.Process.Kill() }).Stop()
	cmd.Wait() // its output says whether it succeeded
	return out.String()
}

// submit submits a batch file with arguments, and returns the job's number.
func (c *cluster) submit(file string, args ...string) string {
	c.t.Helper()
	file, err := filepath.Abs(file)
	if err != nil {
		c.t.Fatal(err)
	}
	return strings.TrimSpace(c.run(append([]string{"sbatch", "--parsable", "--output", c.path("job.out"), "--open-mode=append", file}, args...)...))
}

// output returns what the submitted job has written.
func (c *cluster) output() string {
	text, _ := os.ReadFile(c.path("job.out")) // there is no file until the job starts
	return string(text)
}

// state returns a job's state, such as RUNNING.
func (c *cluster) state(job string) string {
	return strings.TrimSpace(c.run("squeue", "-h", "-t", "all", "-o", "%T", "-j", job))
}

// await waits for a condition.
func (c *cluster) await(what string, isTrue func() bool) {
	c.t.Helper()
	for deadline := time.Now().Add(testkit.Soon); !isTrue(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			c.t.Fatalf("no %s in %v. The job wrote:\n%s", what, testkit.Soon, c.output())
		}
	}
}

// awaitNothingLeft waits until the compute nodes run nothing but their daemons.
func (c *cluster) awaitNothingLeft() {
	c.t.Helper()
	c.await("end of all processes of the job", func() bool {
		for _, h := range c.net.Hosts[1:] {
			for _, p := range h.Processes() {
				if filepath.Base(p.Args[0]) != "slurmd" {
					return false
				}
			}
		}
		return true
	})
}
