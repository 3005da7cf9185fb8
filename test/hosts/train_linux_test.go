package hosts

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/goddp/goddp/internal/testkit/netns"
)

// TestHostsTrain trains on 2, 3 and 8 hosts, whose agents find each other in every way.
func TestHostsTrain(t *testing.T) {
	for _, hosts := range []int{2, 3, 8} {
		for _, c := range []struct {
			name     string
			isShort  bool
			segments int
			meet     func(j *job, n *netns.Network)
		}{
			{"static", hosts == 3, 1, func(j *job, n *netns.Network) { j.static(hosts, n.Hosts[0].Addr(0)) }},
			{"static IPv6", false, 1, func(j *job, n *netns.Network) { j.static(hosts, n.Hosts[0].Addr6(0)) }},
			{"c10d", false, 1, func(j *job, n *netns.Network) { j.c10d(fmt.Sprint(hosts), n.Hosts[0].Addr(0).String()) }},
			{"c10d IPv6", hosts == 2, 1, func(j *job, n *netns.Network) { j.c10d(fmt.Sprint(hosts), endpoint(n.Hosts[0].Addr6(0))) }},
			{"c10d at the last host", false, 1, func(j *job, n *netns.Network) { j.c10d(fmt.Sprint(hosts), endpoint(n.Hosts[hosts-1].Addr(0))) }},
			{"c10d on the second interface", false, 2, func(j *job, n *netns.Network) { j.c10d(fmt.Sprint(hosts), endpoint(n.Hosts[0].Addr(1))) }},
			{"c10d by different addresses", false, 2, func(j *job, n *netns.Network) {
				j.c10d(fmt.Sprint(hosts), endpoint(n.Hosts[0].Addr(1)))
				j.of = func(node int) []string {
					h := n.Hosts[0]
					at := endpoint([]netip.Addr{h.Addr(0), h.Addr6(0), h.Addr(1), h.Addr6(1)}[node%4])
					return []string{"--rdzv-endpoint", at}
				}
			}},
			{"c10d without a secret", false, 1, func(j *job, n *netns.Network) {
				j.flags = []string{"--rdzv-id", "job", "--insecure"}
				j.c10d(fmt.Sprint(hosts), n.Hosts[0].Addr(0).String())
			}},
			{"etcd", false, 1, func(j *job, n *netns.Network) { j.etcd(fmt.Sprint(hosts), n.Hosts[0], n.Hosts[1], n.Hosts[hosts-1]) }},
		} {
			if !c.isShort && *kills == 0 {
				continue
			}
			t.Run(fmt.Sprintf("%d hosts, %s", hosts, c.name), func(t *testing.T) {
				n := netns.New(t, hosts, c.segments)
				j := newJob(t, n)
				c.meet(j, n)
				j.start(upTo(hosts)...)
				j.trains(hosts, 1, upTo(hosts)...)
				j.finish()
				j.ends(hosts, upTo(hosts)...)
			})
		}
	}
}
