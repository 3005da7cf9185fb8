package netns

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goddp/goddp/internal/testkit"
)

// Network is a network of hosts. Its methods, and those of its hosts, fail the test if they cannot do
// their work. They must be called from the test's goroutine, except Do, Start and Processes.
type Network struct {
	Hosts []*Host

	t        testing.TB
	segments int
	bridges  *namespace
}

// Host is one host of a network. Its interface with segment s is eth<s>.
type Host struct {
	*namespace
	network *Network
	index   int
}

// New makes a network of hosts, each of which has an interface with each segment. The end of the test ends
// the network. A process that is left over on a host then fails the test.
func New(t testing.TB, hosts, segments int) *Network {
	t.Helper()
	testkit.Long(t)
	testkit.Need(t, testkit.Root, testkit.Command("ip"), testkit.Command("tc"), testkit.Command("nft"))
	n := &Network{t: t, segments: segments}
	var err error
	if n.bridges, err = newNamespace("bridges"); err != nil {
		t.Skipf("network namespaces are not permitted: %v", err)
	}
	t.Cleanup(n.close)
	var script strings.Builder
	for s := range segments {
		fmt.Fprintf(&script, "link add name br%d type bridge\nlink set br%[1]d up\n", s)
	}
	if err := n.bridges.execute(script.String(), "ip", "-batch", "-"); err != nil {
		t.Skipf("network namespaces are not permitted: %v", err)
	}
	n.check(n.bridges.execute("table bridge partition {\nchain forward {\ntype filter hook forward priority 0\n}\n}\n", "nft", "-f", "-"))
	for i := range hosts {
		ns, err := newNamespace(fmt.Sprintf("host%d", i))
		n.check(err)
		n.Hosts = append(n.Hosts, &Host{ns, n, i})
		n.Hosts[i].configure()
	}
	return n
}

// configure makes the interfaces of the host.
func (h *Host) configure() {
	h.network.t.Helper()
	var there strings.Builder
	here := "link set lo up\n"
	for s := range h.network.segments {
		fmt.Fprintf(&there, "link add name %s type veth peer name eth%d netns %s\n", h.port(s), s, h.path)
		fmt.Fprintf(&there, "link set %s master br%d up\n", h.port(s), s)
		here += fmt.Sprintf("addr add %v/24 dev eth%d\naddr add %v/64 dev eth%[2]d nodad\nlink set eth%[2]d up\n", h.Addr(s), s, h.Addr6(s))
	}
	h.network.check(h.network.bridges.execute(there.String(), "ip", "-batch", "-"))
	h.network.check(h.execute(here, "ip", "-batch", "-"))
}

// port returns the name of the bridge's end of the host's interface with a segment.
func (h *Host) port(segment int) string { return fmt.Sprintf("port%d.%d", h.index, segment) }

// Name returns the host's name.
func (h *Host) Name() string { return h.name }

// Addr returns the host's IPv4 address on a segment.
func (h *Host) Addr(segment int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 77, byte(segment), byte(h.index + 1)})
}

// Addr6 returns the host's IPv6 address on a segment.
func (h *Host) Addr6(segment int) netip.Addr {
	return netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x77, 3: byte(segment), 15: byte(h.index + 1)})
}

// Drop drops all packets from one host to another. Neither host notices anything but the silence.
func (n *Network) Drop(from, to *Host) {
	n.t.Helper()
	rule := fmt.Sprintf("add rule bridge partition forward iifname \"port%d.*\" oifname \"port%d.*\" drop\n", from.index, to.index)
	n.check(n.bridges.execute(rule, "nft", "-f", "-"))
}

// Isolate drops all packets between some hosts and all others. Nobody notices anything but the silence.
func (n *Network) Isolate(some ...*Host) {
	n.t.Helper()
	for _, h := range n.Hosts {
		if slices.Contains(some, h) {
			continue
		}
		for _, isolated := range some {
			n.Drop(h, isolated)
			n.Drop(isolated, h)
		}
	}
}

// Heal ends the effects of Drop and Isolate.
func (n *Network) Heal() {
	n.t.Helper()
	n.check(n.bridges.execute("", "nft", "flush", "chain", "bridge", "partition", "forward"))
}

// SetConnected disconnects the host's cables, or connects them again. The other hosts notice nothing but
// the silence; the host itself loses its carrier.
func (h *Host) SetConnected(isConnected bool) {
	h.network.t.Helper()
	state := "down"
	if isConnected {
		state = "up"
	}
	for s := range h.network.segments {
		h.network.check(h.network.bridges.execute("", "ip", "link", "set", h.port(s), state))
	}
}

// LimitRate limits the rate of each interface of the host, in bits per second, in both directions. 0 means
// no limit.
func (h *Host) LimitRate(rate int) {
	h.network.t.Helper()
	for s := range h.network.segments {
		for dev, ns := range map[string]*namespace{fmt.Sprintf("eth%d", s): h.namespace, h.port(s): h.network.bridges} {
			if rate == 0 {
				h.network.check(ns.execute("", "tc", "qdisc", "del", "dev", dev, "root"))
				continue
			}
			// The bucket holds what is sent between two ticks of the kernel's slowest clock, of 100 Hz.
			burst := fmt.Sprint(max(rate/8/100, 4096))
			h.network.check(ns.execute("", "tc", "qdisc", "replace", "dev", dev, "root", "tbf", "rate", fmt.Sprintf("%dbit", rate), "burst", burst, "latency", "50ms"))
		}
	}
}

// leaveTime is how long processes may take to end after a test.
const leaveTime = 20 * time.Second

// close ends the network. It waits until the processes on its hosts have ended.
func (n *Network) close() {
	deadline := time.Now().Add(leaveTime)
	for _, h := range n.Hosts {
		left := h.Processes()
		for len(left) > 0 && time.Now().Before(deadline) && !n.t.Failed() {
			time.Sleep(10 * time.Millisecond)
			left = h.Processes()
		}
		if len(left) > 0 {
			n.t.Errorf("left over on %s: %v", h.Name(), left)
			h.killAll(left)
		}
		h.close()
	}
	n.bridges.close()
}

// killAll kills the processes of the host until none is left.
func (h *Host) killAll(left []Process) {
	for len(left) > 0 {
		for _, p := range left {
			if err := syscall.Kill(p.PID, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				h.network.t.Errorf("killing %v: %v", p, err)
				return
			}
		}
		time.Sleep(10 * time.Millisecond)
		left = h.Processes()
	}
}

func (n *Network) check(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}
