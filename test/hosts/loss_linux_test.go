package hosts

import (
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/netns"
)

// beat is the time between two heartbeats of fastConf. A node that is silent for three is lost.
// It is so long because a busy machine may keep an agent from running for seconds.
const beat = 2 * time.Second

// slack is how much longer a decision may take on a busy machine.
const slack = 10 * time.Second

// detectedBy checks that a line was written at most three heartbeats after an event.
func detectedBy(t *testing.T, event time.Time, l testkit.Line) {
	t.Helper()
	took := l.At.Sub(event)
	t.Logf("%v: %s", took.Round(time.Millisecond), l.Text)
	if took > 4*beat+slack { // the third heartbeat that is missed ends up to one later
		t.Errorf("%q came after %v", l.Text, took)
	}
}

// hostLost is in the line by which an agent ends that has lost the host of the rendezvous for good.
const hostLost = "the host of the rendezvous is lost, and only --rdzv-backend=etcd can replace it"

// startElastic starts an elastic job of at least 2 of 3 hosts.
func startElastic(t *testing.T) *job {
	t.Helper()
	j := newJob(t, netns.New(t, 3, 1))
	j.c10d("2:3", endpoint(j.net.Hosts[0].Addr(0)))
	j.start(0, 1, 2)
	j.trains(3, 1, 0, 1, 2)
	return j
}

// TestHostsGoOnWithoutOne disconnects a host. The others go on; the agent of that host ends.
func TestHostsGoOnWithoutOne(t *testing.T) {
	j := startElastic(t)
	disconnected := time.Now()
	j.net.Hosts[2].SetConnected(false)
	for _, node := range []int{0, 1} {
		detectedBy(t, disconnected, j.agents[node].Await("host2.* lost: no heartbeat", 1))
	}
	j.trains(2, 1, 0, 1)
	ends(t, j.agents[2], 1)
	j.agents[2].Expect(hostLost, 1)
	j.finish()
	j.ends(2, 0, 1)
}

// TestTooFewHostsStop disconnects a host of a job that needs all.
func TestTooFewHostsStop(t *testing.T) {
	inMakeHosts(t)
	j := newJob(t, netns.New(t, 3, 1))
	j.c10d("3", endpoint(j.net.Hosts[0].Addr(0)))
	j.start(0, 1, 2)
	j.trains(3, 1, 0, 1, 2)
	j.net.Hosts[2].SetConnected(false)
	for _, node := range []int{0, 1} {
		ends(t, j.agents[node], 1)
		j.agents[node].Expect("too few nodes are left: 2 of at least 3", 1)
	}
	ends(t, j.agents[2], 1)
	j.agents[2].Expect(hostLost, 1)
}

// TestHostReturns starts an agent again that was killed. It is taken in at the next round.
func TestHostReturns(t *testing.T) {
	inMakeHosts(t)
	j := startElastic(t)
	for round := range 3 {
		j.agents[2].Cmd.Process.Kill()
		ends(t, j.agents[2], sigkilled)
		j.trains(2, round+1, 0, 1)
		j.start(2)
		j.trains(3, round+2, 0, 1)
		j.trains(3, 1, 2)
	}
	j.finish()
	j.ends(3, 0, 1, 2)
}

// TestReserveTakesOver starts more agents than the job has nodes. When a node is lost, the agent in reserve
// takes its place.
func TestReserveTakesOver(t *testing.T) {
	inMakeHosts(t)
	j := newJob(t, netns.New(t, 3, 1))
	j.c10d("2", endpoint(j.net.Hosts[0].Addr(0)))
	j.start(0, 1)
	j.trains(2, 1, 0, 1)
	j.start(2)
	j.agents[2].Await("waiting: in reserve: round 0 has 2 nodes, the maximum", 1)
	j.net.Hosts[1].SetConnected(false)
	j.trains(2, 2, 0)
	j.trains(2, 1, 2)
	ends(t, j.agents[1], 1)
	j.finish()
	j.ends(2, 0, 2)
}

// TestShortPartitionChangesNothing isolates a host for less than three heartbeats.
func TestShortPartitionChangesNothing(t *testing.T) {
	inMakeHosts(t)
	j := startElastic(t)
	for range 3 {
		j.net.Isolate(j.net.Hosts[2])
		time.Sleep(beat)
		j.net.Heal()
		time.Sleep(3 * beat) // TCP repeats what was lost
	}
	j.finish()
	j.ends(3, 0, 1, 2)
	for _, a := range j.agents {
		a.Expect("lost", 0)
	}
}

// TestPartitionInOneDirection drops the packets of one direction between a host and the host of the
// rendezvous.
func TestPartitionInOneDirection(t *testing.T) {
	inMakeHosts(t)
	for name, drop := range map[string]func(n *netns.Network){
		"to the rendezvous":   func(n *netns.Network) { n.Drop(n.Hosts[2], n.Hosts[0]) },
		"from the rendezvous": func(n *netns.Network) { n.Drop(n.Hosts[0], n.Hosts[2]) },
	} {
		t.Run(name, func(t *testing.T) {
			j := startElastic(t)
			drop(j.net)
			j.trains(2, 1, 0, 1)
			ends(t, j.agents[2], 1)
			j.agents[2].Expect(hostLost, 1)
			j.finish()
			j.ends(2, 0, 1)
		})
	}
}

// TestPartitionBetweenWorkers isolates two hosts from each other; both reach the host of the rendezvous.
// The calls of their workers time out. When the network has healed, the next round goes on.
func TestPartitionBetweenWorkers(t *testing.T) {
	inMakeHosts(t)
	j := newJob(t, netns.New(t, 3, 1))
	j.c10d("3", endpoint(j.net.Hosts[0].Addr(0)))
	j.flags = append(j.flags, "--max-restarts", "1")
	j.worker = append(j.worker, "-timeout", "3s")
	j.start(0, 1, 2)
	j.trains(3, 1, 0, 1, 2)
	j.net.Drop(j.net.Hosts[1], j.net.Hosts[2])
	j.net.Drop(j.net.Hosts[2], j.net.Hosts[1])
	j.agents[0].Await("timeout|timed out|behind", 1)
	j.net.Heal()
	j.trains(3, 2, 0, 1, 2)
	j.finish()
	j.ends(3, 0, 1, 2)
}

// TestSlowHost limits the rate of a host so much that each step takes a long time. Nothing is lost.
func TestSlowHost(t *testing.T) {
	inMakeHosts(t)
	j := newJob(t, netns.New(t, 3, 1))
	j.c10d("2:3", endpoint(j.net.Hosts[0].Addr(0)))
	j.worker = append(j.worker, "-width", "256")
	j.net.Hosts[1].LimitRate(10_000_000)
	j.start(0, 1, 2)
	j.trains(3, 1, 0, 1, 2)
	time.Sleep(10 * beat)
	j.finish()
	j.ends(3, 0, 1, 2)
	for _, a := range j.agents {
		a.Expect("lost", 0)
	}
}

// TestRendezvousHostDies kills the agent that hosts the rendezvous. The others end.
func TestRendezvousHostDies(t *testing.T) {
	inMakeHosts(t)
	for name, do := range map[string]func(j *job){
		"killed":       func(j *job) { j.agents[0].Cmd.Process.Kill() },
		"disconnected": func(j *job) { j.net.Hosts[0].SetConnected(false) },
	} {
		t.Run(name, func(t *testing.T) {
			j := startElastic(t)
			at := time.Now()
			do(j)
			for _, node := range []int{1, 2} {
				ends(t, j.agents[node], 1)
				j.agents[node].Expect(hostLost, 1)
				detectedBy(t, at, j.agents[node].Await(hostLost, 1))
			}
			if name == "disconnected" { // it lacks the others
				ends(t, j.agents[0], 1)
				j.agents[0].Expect("too few nodes are left: 1 of at least 2", 1)
			}
		})
	}
}

// rendezvousHost returns the host whose agent hosts the rendezvous: it alone has an open port.
func (j *job) rendezvousHost() int {
	j.t.Helper()
	var found []int
	for node, a := range j.agents {
		select {
		case <-a.Ended():
			continue
		default:
		}
		if len(openPorts(j.t, j.net.Hosts[node])) > 0 {
			found = append(found, node)
		}
	}
	if len(found) != 1 {
		j.t.Fatalf("the hosts %v have open ports, want one", found)
	}
	return found[0]
}

// TestRendezvousHostIsReplaced kills, with etcd, the agent that hosts the rendezvous; then one that took over.
func TestRendezvousHostIsReplaced(t *testing.T) {
	inMakeHosts(t)
	for name, do := range map[string]func(j *job, node int){
		"killed":       func(j *job, node int) { j.agents[node].Cmd.Process.Kill() },
		"disconnected": func(j *job, node int) { j.net.Hosts[node].SetConnected(false) },
	} {
		t.Run(name, func(t *testing.T) {
			const hosts = 4
			n := netns.New(t, hosts+1, 1)
			j := newJob(t, n)
			j.etcd(fmt.Sprintf("2:%d", hosts), n.Hosts[hosts], n.Hosts[hosts], n.Hosts[hosts])
			left := upTo(hosts)
			j.start(left...)
			j.trains(hosts, 1, left...)
			for len(left) > 2 {
				dead := j.rendezvousHost()
				t.Logf("%s hosts the rendezvous", n.Hosts[dead].Name())
				do(j, dead)
				left = slices.DeleteFunc(left, func(node int) bool { return node == dead })
				j.trains(len(left), 1, left...)
				if name == "disconnected" {
					j.agents[dead].Cmd.Process.Signal(syscall.SIGTERM) // or it waits for etcd
					<-j.agents[dead].Ended()
				}
			}
			j.finish()
			j.ends(len(left), left...)
		})
	}
}

// TestElectionProcessDies kills golaunch-etcd, first in an agent that does not host the rendezvous: nothing
// happens. Then in the one that does: another round begins with all hosts. Then the new host dies: the agents
// whose golaunch-etcd was killed start another one.
func TestElectionProcessDies(t *testing.T) {
	inMakeHosts(t)
	const hosts = 3
	n := netns.New(t, hosts+1, 1)
	j := newJob(t, n)
	j.etcd("2:3", n.Hosts[hosts])
	nodes := upTo(hosts)
	j.start(nodes...)
	j.trains(hosts, 1, nodes...)
	killElection := func(node int) {
		s := &killScenario{node: node, victim: electionProcess}
		s.kill(j)
	}
	host := j.rendezvousHost()
	for node := range hosts {
		if node != host {
			killElection(node)
		}
	}
	for _, a := range j.agents {
		a.Expect("stopping the workers", 0)
	}
	killElection(host)
	j.trains(hosts, 2, nodes...)
	for node, a := range j.agents {
		if node == host {
			a.Expect("stopping the workers: the host of the rendezvous, this node, is lost: golaunch-etcd has ended", 1)
		} else {
			a.Await("stopping the workers: ", 1) // the host is not elected any more, or its workers have ended
		}
	}
	host = j.rendezvousHost()
	j.agents[host].Cmd.Process.Kill()
	others := slices.DeleteFunc(upTo(hosts), func(node int) bool { return node == host })
	j.trains(hosts-1, 1, others...)
	j.finish()
	j.ends(hosts-1, others...)
}
