package slurm

import (
	"fmt"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/goddp/goddp/internal/testkit"
)

var end = regexp.MustCompile(`rank (\d+) of (\d+) on (\w+) ends at (step \d+: params sha256 [0-9a-f]+)`)

// checkEnd checks that so many ranks ended with the same parameters, and returns how they ended.
func (c *cluster) checkEnd(output string, ranks int) string {
	c.t.Helper()
	seen, last := map[string]bool{}, ""
	for _, found := range end.FindAllStringSubmatch(output, -1) {
		if last != "" && found[4] != last {
			c.t.Errorf("rank %s ended at %s, another one at %s", found[1], found[4], last)
		}
		seen[found[1]], last = true, found[4]
	}
	if len(seen) != ranks {
		c.t.Errorf("%d ranks ended, want %d. The job wrote:\n%s", len(seen), ranks, output)
	}
	return last
}

// TestSteps starts steps of several shapes. Their tasks find each other without flags, and take the GPUs that
// Slurm gives them.
func TestSteps(t *testing.T) {
	testkit.Long(t)
	c := newCluster(t, 2)
	c.env = append(c.env, "GODDP_TOKEN=0123456789abcdef0123456789abcdef")
	for _, step := range []struct {
		options string
		ranks   int
	}{
		{"--nodes=2", 2},
		{"--nodes=2 --ntasks=8 --distribution=cyclic", 8},
		{"--nodes=2 --gpus=3", 3},            // one on the first node, two on the second
		{"--nodes=1 --gpus=2 --ntasks=2", 2}, // which divide what they see
	} {
		t.Run(step.options, func(t *testing.T) {
			args := append([]string{"srun"}, strings.Fields(step.options)...)
			c.checkEnd(c.run(append(args, "golaunch", "worker", "-steps", "20")...), step.ranks)
		})
	}
	out := c.run("srun", "--nodes=2", "--cpus-per-task=6", "golaunch", "--standalone", "--nproc-per-node=2", "sh", "-c", "echo $WORLD_SIZE $OMP_NUM_THREADS")
	if n := strings.Count(out, ": 2 3\n"); n != 4 {
		t.Errorf("two jobs of one node each: %d workers with a world of 2 and 3 threads, want 4:\n%s", n, out)
	}
	c.env = append(c.env, "GODDP_TOKEN=")
	if out := c.run("srun", "--nodes=2", "golaunch", "worker"); !strings.Contains(out, "export GODDP_TOKEN=") {
		t.Errorf("without a secret:\n%s", out)
	}
}

// TestRequeuedJob preempts a job. Its ranks save the step that they were at, and the requeued job ends as one
// that nothing happened to.
func TestRequeuedJob(t *testing.T) {
	testkit.Long(t)
	c := newCluster(t, 2)
	train := func(folder string, flags ...string) string {
		return c.submit("../../examples/slurm/train.sbatch", append([]string{"worker", "-every", "1000", "-resume", c.path(folder)}, flags...)...)
	}
	job := train("broken", "-pause", "10ms", "-until", c.path("finish"))
	c.await("training", func() bool { return strings.Contains(c.output(), "trains from step 0") })
	c.run("scontrol", "requeue", job)
	c.await("requeued job", func() bool { return c.state(job) == "PENDING" })
	c.awaitNothingLeft()
	stopped := len(c.output())
	c.run("scontrol", "update", "jobid="+job, "StartTime=now+1") // in the second of its end, slurmd would not start it again
	c.await("training", func() bool { return strings.Contains(c.output()[stopped:], "trains from step") })
	c.write("finish", "")
	c.await("end", func() bool { return c.state(job) == "COMPLETED" })
	t.Logf("the job wrote:\n%s", c.output())
	if strings.Contains(c.output()[stopped:], "trains from step 0") {
		t.Error("the requeued job began anew")
	}
	got := c.checkEnd(c.output()[stopped:], 2)

	var steps int
	if _, err := fmt.Sscanf(got, "step %d:", &steps); err != nil {
		t.Fatal(err)
	}
	c.write("job.out", "")
	job = train("unbroken", "-steps", fmt.Sprint(steps))
	c.await("end", func() bool { return c.state(job) == "COMPLETED" })
	if want := c.checkEnd(c.output(), 2); got != want {
		t.Errorf("the requeued job ended at %s, an unbroken one at %s", got, want)
	}
}

// TestCancelledJob cancels a job, which ends on all nodes.
func TestCancelledJob(t *testing.T) {
	testkit.Long(t)
	c := newCluster(t, 2)
	job := c.submit("../../examples/slurm/train.sbatch", "--nproc-per-node=2", "worker", "-pause", "10ms")
	c.await("training", func() bool { return strings.Count(c.output(), "trains from step 0") == 4 })
	c.run("scancel", job)
	c.await("cancelled job", func() bool { return c.state(job) == "CANCELLED" })
	c.awaitNothingLeft()
	t.Logf("the job wrote:\n%s", c.output())
}

// TestNodeDies kills all processes of a node. The other node ends the job, and names the one that was lost.
func TestNodeDies(t *testing.T) {
	testkit.Long(t)
	c := newCluster(t, 2)
	job := c.submit("../../examples/slurm/train.sbatch", "worker", "-pause", "10ms")
	c.await("training", func() bool { return strings.Count(c.output(), "trains from step 0") == 2 })
	for _, p := range c.net.Hosts[2].Processes() {
		syscall.Kill(p.PID, syscall.SIGKILL)
	}
	c.await("report", func() bool {
		return strings.Contains(c.output(), "node 1 (host2) lost") && strings.Contains(c.output(), "No restart")
	})
	c.run("scancel", job)
	c.awaitNothingLeft()
	t.Logf("the job wrote:\n%s", c.output())
}

// TestArray submits an array of jobs, each of one node.
func TestArray(t *testing.T) {
	testkit.Long(t)
	c := newCluster(t, 2)
	job := c.submit("../../examples/slurm/sweep.sbatch", "sh", "-c", "echo seed $1 of a world of $WORLD_SIZE")
	c.await("end of the jobs", func() bool { return strings.Count(c.state(job), "COMPLETED") == 4 })
	for seed := range 4 {
		if want := fmt.Sprintf("seed %d of a world of 1", seed); strings.Count(c.output(), want) != 1 {
			t.Errorf("no %q:\n%s", want, c.output())
		}
	}
}
