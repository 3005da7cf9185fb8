package hosts

import (
	"syscall"
	"testing"

	"github.com/goddp/goddp/internal/testkit/netns"
)

// TestRendezvousHostReturns cuts the host of the rendezvous off from the other hosts but not from etcd, and then
// stops its golaunch. Each time the job goes on with all hosts when the host is back.
func TestRendezvousHostReturns(t *testing.T) {
	inMakeHosts(t)
	const hosts = 3
	n := netns.New(t, hosts+1, 1)
	j := newJob(t, n)
	j.etcd("1:3", n.Hosts[hosts])
	nodes := upTo(hosts)
	j.start(nodes...)
	j.trains(hosts, 1, nodes...)
	host := j.rendezvousHost()
	for node := range hosts {
		if node != host {
			n.Drop(n.Hosts[host], n.Hosts[node])
			n.Drop(n.Hosts[node], n.Hosts[host])
		}
	}
	j.trains(1, 1, host)
	n.Heal()
	j.trains(hosts, 2, nodes...)

	host = j.rendezvousHost()
	j.agents[host].Cmd.Process.Signal(syscall.SIGSTOP)
	for node := range hosts {
		if node != host {
			j.trains(hosts-1, 1, node)
		}
	}
	j.agents[host].Cmd.Process.Signal(syscall.SIGCONT)
	j.trains(hosts, 3, nodes...)
	j.finish()
	j.ends(hosts, nodes...)
}
