package hosts

import (
	"testing"

	"github.com/goddp/goddp/internal/testkit/netns"
)

// startSurvivors starts a job on three hosts that survives the loss of workers.
func startSurvivors(t *testing.T, flags ...string) *job {
	t.Helper()
	j := newJob(t, netns.New(t, 3, 1))
	j.c10d("3", endpoint(j.net.Hosts[0].Addr(0)))
	j.flags = append(j.flags, "--on-failure", "replace")
	j.worker = append([]string{program(t, "worker"), "-until", j.finishFile(), "-pause", "5ms"}, flags...)
	j.start(0, 1, 2)
	j.trains(3, 1, 0, 1, 2)
	return j
}

// TestSurvivorsGoOnWithoutAHost disconnects a host. Its agent kills its worker, before the others go on in the same
// round. When it is started again, a new worker joins them.
func TestSurvivorsGoOnWithoutAHost(t *testing.T) {
	j := startSurvivors(t)
	j.net.Hosts[2].SetConnected(false)
	for _, node := range []int{0, 1} {
		j.agents[node].Await(`node \d \(host2\) lost: no heartbeat for 6s; its workers are dead for certain in `, 1)
	}
	killed := j.agents[2].Await(`golaunch: killing rank \d`, 1)
	ends(t, j.agents[2], 1)
	j.agents[2].Expect(hostLost, 1)
	j.trains(2, 1, 0, 1)
	for _, node := range []int{0, 1} {
		if l := j.agents[node].Await("golaunch: epoch 2: 2 workers at step", 1); l.At.Before(killed.At) {
			t.Errorf("%q before the lost worker was killed", l.Text)
		}
	}
	j.net.Hosts[2].SetConnected(true)
	j.start(2)
	j.trains(3, 2, 0, 1)
	j.trains(3, 1, 2)
	j.finish()
	j.ends(3, 0, 1, 2)
	for _, a := range j.agents {
		a.Expect("round 1", 0)
	}
}

// TestPartitionBetweenSurvivors isolates two hosts from each other; both reach the host of the rendezvous. First the same
// workers try again. Then the one that reports first that it cannot reach its peer ends, and the others go on. When the
// network has healed, a worker that replaces it joins them.
func TestPartitionBetweenSurvivors(t *testing.T) {
	inMakeHosts(t)
	j := startSurvivors(t, "-timeout", "3s")
	j.net.Drop(j.net.Hosts[1], j.net.Hosts[2])
	j.net.Drop(j.net.Hosts[2], j.net.Hosts[1])
	j.agents[0].Await("golaunch: epoch 2: 3 workers at step", 1)
	j.trains(2, 1, 0)
	j.net.Heal()
	j.trains(3, 2, 0)
	j.finish()
	j.ends(3, 0, 1, 2)
}
