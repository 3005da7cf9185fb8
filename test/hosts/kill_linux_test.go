package hosts

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/netns"
)

// The processes of a node.
const (
	agentProcess    = "agent"
	reaperProcess   = "reaper"
	workerProcess   = "worker"
	electionProcess = "golaunch-etcd"
)

// killScenario is a job of 2 to 3 hosts with two workers each, one of whose processes is killed.
type killScenario struct {
	seed   uint64
	etcd   bool
	node   int           // of the victim
	victim string        // one of the processes of a node
	local  int           // the local rank of a worker
	delay  time.Duration // from the start of the agents
	final  bool          // the job has no restarts
}

func (s *killScenario) String() string {
	rdzv := "c10d"
	if s.etcd {
		rdzv = "etcd"
	}
	what := s.victim
	if s.victim == workerProcess {
		what = fmt.Sprintf("worker %d", s.local)
	}
	if s.final {
		rdzv += ", no restarts"
	}
	return fmt.Sprintf("seed %d: %s of host%d, %s, after %v", s.seed, what, s.node, rdzv, s.delay)
}

func drawKill(seed uint64) *killScenario {
	r := rand.New(rand.NewPCG(seed, 0))
	s := &killScenario{
		seed: seed, etcd: r.IntN(2) == 1, node: r.IntN(3), local: r.IntN(2),
		victim: []string{agentProcess, reaperProcess, workerProcess}[r.IntN(3)],
		delay:  time.Duration(r.IntN(1500)) * time.Millisecond,
		final:  r.IntN(2) == 1,
	}
	if s.etcd && s.victim != reaperProcess && r.IntN(3) == 0 {
		s.victim = electionProcess
	}
	return s
}

// TestKills kills one process of each job. The job ends or goes on as docs/golaunch.md says.
func TestKills(t *testing.T) {
	tallies := map[string]*tally{}
	for k := range uint64(max(*kills, 2)) {
		s := drawKill(*seed + k)
		if tallies[s.victim] == nil {
			tallies[s.victim] = &tally{}
		}
		t.Run(s.String(), func(t *testing.T) { s.run(t, tallies[s.victim]) })
	}
	for victim, of := range tallies {
		t.Logf("%s: killed %d times, %d times in a round; every node noticed it after at most %v, and trained again or had ended after %v",
			victim, of.kills, of.inRound, of.detected, of.settled)
	}
}

// tally is what the kills of one kind of process came to.
type tally struct {
	kills             int
	inRound           int   // kills that ended a round, in which all nodes took part
	detected, settled worst // of these
}

// worst is the longest time that something took, and of which job.
type worst struct {
	took time.Duration
	of   *killScenario
}

func (w *worst) add(took time.Duration, of *killScenario) {
	if took > w.took {
		*w = worst{took, of}
	}
}

func (w worst) String() string { return fmt.Sprintf("%v (%v)", w.took.Round(time.Millisecond), w.of) }

// run runs the job, and adds to a tally.
func (s *killScenario) run(t *testing.T, of *tally) {
	of.kills++
	n := netns.New(t, 4, 1)
	j := newJob(t, n)
	if s.etcd {
		j.etcd("2:3", n.Hosts[3])
	} else {
		j.c10d("2:3", endpoint(n.Hosts[0].Addr(0)))
	}
	j.flags = append(j.flags, "--nproc-per-node", "2")
	if !s.final {
		j.flags = append(j.flags, "--max-restarts", "1")
	}
	j.start(0, 1, 2)
	time.Sleep(s.delay)                                                               // the moment of the kill is what the seed chooses
	hosted := s.etcd && len(j.agents[s.node].Matches("round 0: this is node 0 ")) > 0 // the host is node 0 of its first round
	cause, killed := s.kill(j)

	others := slices.DeleteFunc(upTo(3), func(node int) bool { return node == s.node })
	nodes := upTo(3) // that go on, or end in order
	if s.victim == agentProcess || s.victim == reaperProcess {
		nodes = others
		a := j.agents[s.node]
		ends(t, a, map[string]int{agentProcess: sigkilled, reaperProcess: 1}[s.victim])
		if s.victim == reaperProcess {
			a.Expect("the reaper .* was killed by SIGKILL", 1)
		}
	}
	hostsAlone := s.node == 0 && !s.etcd && s.victim != workerProcess // nobody can replace the victim
	changesNothing := s.victim == electionProcess && !hosted
	hadRound := len(j.agents[s.node].Matches("round 0: ")) > 0
	isKnown := !changesNothing && (s.victim == workerProcess || hostsAlone || hadRound)
	if hostsAlone && s.victim == reaperProcess && hadRound {
		cause = `error     : ` + cause // the root cause in the report
	}
	if hostsAlone && !hadRound { // the others may not have reached the host of the rendezvous yet
		cause += "|" + hostLost + "|no host of the rendezvous was found in time"
	}
	var notices []testkit.Line
	if isKnown { // or the others began without the victim
		for _, node := range nodes {
			notices = append(notices, j.agents[node].AwaitAfter(killed, "^golaunch: ", 1))
			j.agents[node].AwaitAfter(killed, cause, 1)
		}
	}
	last := time.Time{}
	if hostsAlone || s.victim == workerProcess && s.final {
		code := 1
		if s.victim == workerProcess {
			code = 128 + int(syscall.SIGKILL)
		}
		for _, node := range nodes {
			ends(t, j.agents[node], code)
		}
		last = time.Now()
	} else {
		after := killed
		if changesNothing {
			after = time.Time{}
		}
		for _, node := range nodes {
			l := j.agents[node].AwaitAfter(after, fmt.Sprintf(`of %d on host\d trains`, 2*len(nodes)), 2)
			if l.At.After(last) {
				last = l.At
			}
		}
		j.finish()
		j.ends(2*len(nodes), nodes...)
	}
	if changesNothing || slices.ContainsFunc(nodes, func(node int) bool {
		rounds := j.agents[node].Matches("round 0: ")
		return len(rounds) == 0 || rounds[0].At.After(killed)
	}) {
		return // or the nodes were still meeting
	}
	of.inRound++
	for _, l := range notices {
		of.detected.add(l.At.Sub(killed), s)
	}
	of.settled.add(last.Sub(killed), s)
}

// kill kills the victim. It returns the pattern of the line that names the cause on every other node, and
// the time before the kill.
func (s *killScenario) kill(j *job) (cause string, at time.Time) {
	j.t.Helper()
	pid := j.agents[s.node].Cmd.Process.Pid
	switch s.victim {
	case workerProcess:
		pid = s.find(j, func(p netns.Process) bool {
			return p.Args[0] == j.worker[0] && slices.Contains(environ(p.PID), fmt.Sprintf("LOCAL_RANK=%d", s.local))
		})
		cause = fmt.Sprintf(`restart 1 of 1: worker failed: rank \d \(node \d on host%d, local rank %d, pid %d\) was killed by SIGKILL`, s.node, s.local, pid)
		if s.final {
			cause = fmt.Sprintf(`exitcode  : -9 \(pid: %d\), killed by SIGKILL`, pid) // of the root cause
		}
	case reaperProcess:
		pid = s.find(j, func(p netns.Process) bool { return p.Args[0] == "golaunch-reaper" })
		cause = fmt.Sprintf(`left: the reaper \(pid %d\), the parent of the workers, was killed by SIGKILL`, pid)
	case electionProcess:
		pid = s.find(j, func(p netns.Process) bool { return strings.HasSuffix(p.Args[0], electionProcess) })
		cause = fmt.Sprintf(`the host of the rendezvous, (%v:\d+, is lost: it is not elected any more|this node, is lost: golaunch-etcd has ended)`, j.net.Hosts[s.node].Addr(0))
	case agentProcess:
		cause = fmt.Sprintf(`node \d \(host%d\) lost: its agent ended|the host of the rendezvous, %v:\d+, is lost: its agent ended`, s.node, j.net.Hosts[s.node].Addr(0))
		if s.node == 0 && !s.etcd {
			cause = hostLost
		}
	}
	at = time.Now()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		j.t.Fatal(err)
	}
	return cause, at
}

// find waits for a process of the victim's host.
func (s *killScenario) find(j *job, is func(netns.Process) bool) (pid int) {
	j.t.Helper()
	for deadline := time.Now().Add(testkit.Soon); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		for _, p := range j.net.Hosts[s.node].Processes() {
			if is(p) {
				return p.PID
			}
		}
	}
	j.t.Fatalf("there is no %s on host%d", s.victim, s.node)
	return 0
}

// environ returns the environment of a process.
func environ(pid int) []string {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	return strings.Split(string(data), "\x00")
}
