package hosts

import (
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/netns"
)

// openPorts returns the TCP ports of a host that other hosts can reach.
func openPorts(t *testing.T, h *netns.Host) (ports []int) {
	t.Helper()
	var tables []byte
	h.Do(func() {
		for _, name := range []string{"tcp", "tcp6"} {
			table, err := os.ReadFile("/proc/thread-self/net/" + name)
			if err != nil {
				t.Error(err)
			}
			tables = append(tables, table...)
		}
	})
	for line := range strings.Lines(string(tables)) {
		const listens = "0A"
		f := strings.Fields(line)
		if len(f) < 4 || f[3] != listens {
			continue
		}
		addr := kernelAddr(t, f[1])
		if !addr.Addr().Unmap().IsLoopback() {
			ports = append(ports, int(addr.Port()))
		}
	}
	return ports
}

// kernelAddr parses 0100007F:1F90, the address 127.0.0.1:8080 in the words of a little-endian machine.
func kernelAddr(t *testing.T, s string) netip.AddrPort {
	t.Helper()
	host, port, _ := strings.Cut(s, ":")
	bytes, err := hex.DecodeString(host)
	if err != nil {
		t.Fatalf("%s: %v", s, err)
	}
	for b := range slices.Chunk(bytes, 4) {
		binary.BigEndian.PutUint32(b, binary.LittleEndian.Uint32(b))
	}
	addr, isAddr := netip.AddrFromSlice(bytes)
	n, err := strconv.ParseUint(port, 16, 16)
	if err != nil || !isAddr {
		t.Fatalf("%s is no address: %v", s, err)
	}
	return netip.AddrPortFrom(addr, uint16(n))
}

// awaitPorts waits until a host has so many ports that other hosts can reach, and returns them.
func awaitPorts(t *testing.T, h *netns.Host, n int) []int {
	t.Helper()
	var ports []int
	for deadline := time.Now().Add(testkit.Soon); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if ports = openPorts(t, h); len(ports) == n {
			return ports
		}
	}
	t.Fatalf("%s has the open ports %v, want %d", h.Name(), ports, n)
	return nil
}
