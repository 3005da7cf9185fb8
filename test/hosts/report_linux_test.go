package hosts

import (
	"fmt"
	"strings"
	"testing"

	"github.com/goddp/goddp/internal/testkit/netns"
)

// TestEveryNodeReportsTheSameCause has a worker of one node fail. All nodes print its failure and end with
// its exit code.
func TestEveryNodeReportsTheSameCause(t *testing.T) {
	n := netns.New(t, 3, 1)
	j := newJob(t, n)
	j.c10d("3", endpoint(n.Hosts[0].Addr(0)))
	j.flags = append(j.flags, "--nproc-per-node", "2", "--no-python")
	j.worker = []string{"bash", "-c", `[ $RANK != 3 ] && exec sleep 1000; echo "line of rank $RANK" >&2; exit 42`}
	j.start(0, 1, 2)
	var reports []string
	for node := range n.Hosts {
		a := j.agents[node]
		ends(t, a, 42)
		_, report, _ := strings.Cut(a.Stderr(), "Root Cause")
		report, _, _ = strings.Cut(report, "----")
		reports = append(reports, report)
		for _, want := range []string{"exitcode  : 42 ", "rank      : 3 (local_rank: 1)", "| line of rank 3"} {
			if !strings.Contains(report, want) {
				t.Errorf("the report of host%d lacks %q", node, want)
			}
		}
	}
	for node, report := range reports {
		if report != reports[0] {
			t.Errorf("host%d reports\n%s\nand host0\n%s", node, report, reports[0])
		}
	}
}

// TestMuchTextOfFailuresIsReported has all workers fail at once, after they wrote much that is not text.
func TestMuchTextOfFailuresIsReported(t *testing.T) {
	inMakeHosts(t)
	const workers = 12
	n := netns.New(t, 3, 1)
	j := newJob(t, n)
	j.c10d("3", endpoint(n.Hosts[0].Addr(0)))
	j.flags = append(j.flags, "--nproc-per-node", fmt.Sprint(workers), "--no-python")
	j.worker = []string{"bash", "-c", `head -c 300000 /dev/urandom | tr '\n' x >&2; echo >&2; trap "" TERM; sleep 1; exit 42`}
	j.start(0, 1, 2)
	for node := range n.Hosts {
		ends(t, j.agents[node], 42)
		j.agents[node].Expect("exitcode +: 42 ", 1)
		j.agents[node].Expect("(lost|cannot be reached)", 0)
	}
}
