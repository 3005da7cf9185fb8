package hosts

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goddp/goddp/internal/handshake/handshaketest"
	"github.com/goddp/goddp/internal/netns"
)

// capture records the TCP packets of a host.
type capture struct {
	t       *testing.T
	done    chan struct{}
	wg      sync.WaitGroup
	streams map[stream][]segment // read after stop
}

// stream is one direction of a connection.
type stream struct{ from, to netip.AddrPort }

// segment is what a packet adds to a stream.
type segment struct {
	seq     uint32
	isFirst bool // the packet opens the connection
	data    []byte
}

// newCapture begins to record the IPv4 packets on a host's first interface.
func newCapture(t *testing.T, h *netns.Host) *capture {
	t.Helper()
	const protocol = unix.ETH_P_ALL << 8 // in network order; ETH_P_IP leaves out what the host sends
	var fd int
	var err error
	h.Do(func() {
		var eth0 *net.Interface
		if eth0, err = net.InterfaceByName("eth0"); err != nil {
			return
		}
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err == nil {
			err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: eth0.Index})
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	poll := unix.NsecToTimeval(int64(50 * time.Millisecond))
	if err := cmp.Or(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 8<<20), unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &poll)); err != nil {
		t.Fatal(err)
	}
	c := &capture{t: t, done: make(chan struct{}), streams: map[stream][]segment{}}
	c.wg.Go(func() {
		defer unix.Close(fd)
		packet := make([]byte, 1<<17)
		for {
			n, _, err := unix.Recvfrom(fd, packet, 0)
			if err == nil {
				c.add(packet[:n])
				continue
			}
			select {
			case <-c.done:
				return
			default:
			}
		}
	})
	t.Cleanup(c.stop)
	return c
}

// add adds a packet if it is one of TCP over IPv4.
func (c *capture) add(packet []byte) {
	if len(packet) < 20 || packet[0]>>4 != 4 || packet[9] != unix.IPPROTO_TCP {
		return
	}
	network := binary.BigEndian
	addr := func(at int, port []byte) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(packet[at:])), network.Uint16(port))
	}
	tcp := packet[4*int(packet[0]&15) : network.Uint16(packet[2:])]
	const syn = 2
	s := segment{network.Uint32(tcp[4:]), tcp[13]&syn != 0, slices.Clone(tcp[4*int(tcp[12]>>4):])}
	from, to := addr(12, tcp), addr(16, tcp[2:])
	c.streams[stream{from, to}] = append(c.streams[stream{from, to}], s)
}

// stop ends the recording.
func (c *capture) stop() {
	select {
	case <-c.done:
	default:
		close(c.done)
	}
	c.wg.Wait()
}

// bytes returns what was sent on a stream, up to the first packet that was not recorded.
func (c *capture) bytes(of stream) (sent []byte) {
	segments := c.streams[of]
	first := slices.IndexFunc(segments, func(s segment) bool { return s.isFirst })
	if first < 0 {
		return nil
	}
	begin := segments[first].seq + 1
	slices.SortStableFunc(segments, func(a, b segment) int { return cmp.Compare(a.seq-begin, b.seq-begin) })
	for _, s := range segments {
		at := int(s.seq - begin)
		if at > len(sent) {
			break // a gap, or the packet that opened the connection
		}
		if at+len(s.data) > len(sent) {
			sent = append(sent, s.data[len(sent)-at:]...)
		}
	}
	return sent
}

// TestDataBetweenHostsAreProtected listens on the network while two hosts train. With a token, nothing but
// TLS follows the handshakes. Without one, the ranks' data are in the clear.
func TestDataBetweenHostsAreProtected(t *testing.T) {
	for _, hasToken := range []bool{true, false} {
		t.Run(fmt.Sprint("token ", hasToken), func(t *testing.T) {
			n := netns.New(t, 2, 1)
			c := newCapture(t, n.Hosts[0])
			j := newJob(t, n)
			if !hasToken {
				j.flags = []string{"--rdzv-id", "job", "--insecure"}
			}
			j.c10d("2", endpoint(n.Hosts[0].Addr(0)))
			j.start(0, 1)
			j.trains(2, 1, 0, 1)
			j.finish()
			j.ends(2, 0, 1)
			c.stop()
			streams, most := 0, 0
			for s := range c.streams {
				if s.from.Port() == rdzvPort || s.to.Port() == rdzvPort {
					continue
				}
				sent := c.bytes(s)
				if err := handshaketest.CheckProtected(sent); (err == nil) != hasToken {
					t.Errorf("%v to %v, %d bytes: %v", s.from, s.to, len(sent), err)
				}
				streams++
				most = max(most, len(sent))
			}
			// Two connections, of which one carries the gradients.
			if streams != 4 || most < 10_000 {
				t.Errorf("%d streams between the ranks, want 4; the longest has %d bytes", streams, most)
			}
		})
	}
}
