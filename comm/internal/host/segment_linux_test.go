package host_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goddp/goddp/comm/internal/host"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/testkit/backendtest"
)

// mappings returns how many times this process has mapped each segment, by inode. Shared regions
// count too.
func mappings(t *testing.T) map[string]int {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	mapped := map[string]int{}
	for line := range strings.Lines(string(maps)) {
		if f := strings.Fields(line); len(f) > 5 && strings.HasPrefix(f[5], "/memfd:goddp") {
			mapped[f[4]]++
		}
	}
	return mapped
}

// Memory from Alloc that nothing refers to is unmapped by its owner and by the peers that accessed
// it, while the group is in use.
func TestUnusedMemoryIsUnmappedOnAllRanks(t *testing.T) {
	groups := open(t, "shm", 2)
	reduceOnce := func() {
		x := backendtest.Trial{Kind: backend.AllReduce, DType: device.Float32, Count: 20_000, InPlace: true}
		if err := backendtest.Each(groups, x.Run); err != nil {
			t.Fatal(err)
		}
	}
	reduceOnce()
	base := mappings(t) // segments of this test and earlier ones, which may be freed at any time
	mapped := func() (n int) {
		for inode, times := range mappings(t) {
			if base[inode] == 0 {
				n += times
			}
		}
		return n
	}
	const rounds = 100
	gc := debug.SetGCPercent(-1)
	for range rounds {
		reduceOnce()
	}
	debug.SetGCPercent(gc)
	all := mapped()
	if all < 2*rounds { // one for each rank and round
		t.Fatalf("%d segments are mapped after %d rounds: nothing to free", all, rounds)
	}
	for deadline := time.Now().Add(soon); mapped() > rounds; { // the latest rounds' segments may still be in use
		if time.Now().After(deadline) {
			t.Fatalf("%d segments are mapped, %d before they were to be freed", mapped(), all)
		}
		runtime.GC()
		reduceOnce() // tells the peers which segments were freed
	}
}

func TestMemoryStaysValidAfterClose(t *testing.T) {
	groups := open(t, "shm", 2)
	x := filled(shared, groups[0], device.Int32, 0, 0, 10_000)
	if err := each(groups, func(_ int, g *backendtest.Rank) error { return g.Close(t.Context()) }); err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	if err := expect("after Close", x, func(i int) float64 { return backendtest.Element(device.Int32, 0, i) }); err != nil {
		t.Fatal(err)
	}
}

// Alloc must fail before it has used up the host's memory.
func TestAllocOfTooMuchFails(t *testing.T) {
	for _, transport := range []string{"shm", "tcp", "inproc"} {
		_, err := open(t, transport, 2)[0].Alloc(1 << 50)
		var oom *device.OutOfMemoryError
		if !errors.As(err, &oom) || oom.Asked != 1<<50 || oom.Free <= 0 {
			t.Errorf("%s: error %v, want that there is less than a pebibyte", transport, err)
		}
	}
}

// The last byte is in the last reserved part.
func TestAllocOfSeveralReservations(t *testing.T) {
	const size = 64<<20 + 1
	b, err := open(t, "shm", 2)[0].Alloc(size)
	if err != nil {
		t.Fatal(err)
	}
	mem := b.Host()
	if mem[size-1] = 1; len(mem) != size {
		t.Errorf("%d bytes, want %d", len(mem), size)
	}
}

// Small buffers share file descriptors and do not overlap.
func TestSmallBuffersShareASegment(t *testing.T) {
	openFiles := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	groups := open(t, "shm", 2)
	before := openFiles()
	const buffers, size = 1000, 1001
	made := make([][]byte, buffers)
	for i := range made {
		b, err := groups[0].Alloc(size)
		if err != nil {
			t.Fatal(err)
		}
		made[i] = b.Host()
		for _, v := range made[i] {
			if v != 0 {
				t.Fatalf("buffer %d is not zeroed", i)
			}
		}
		if len(made[i]) != size || uintptr(unsafe.Pointer(&made[i][0]))%device.Align != 0 {
			t.Fatalf("buffer %d of %d bytes at %p", i, len(made[i]), &made[i][0])
		}
		for j := range made[i] {
			made[i][j] = byte(i)
		}
	}
	if more := openFiles() - before; more > 2 {
		t.Errorf("%d buffers of %d bytes hold %d descriptors", buffers, size, more)
	}
	for i, mem := range made {
		if mem[0] != byte(i) || mem[size-1] != byte(i) {
			t.Errorf("buffer %d holds %d and %d", i, mem[0], mem[size-1])
		}
	}
	// Buffers of one segment are reduced in place.
	err := each(groups, func(r int, g *backendtest.Rank) error {
		for i := range 3 {
			x := filled(shared, g, device.Float32, r, 0, 10_000)
			if err := call(g, &backend.Call{Kind: backend.AllReduce, Op: backend.Sum, Src: x, Dst: x, Seq: uint64(i + 1), Timeout: soon}); err != nil {
				return err
			}
			if err := expect("sum", x, func(i int) float64 { return backendtest.Reduced(device.Float32, backend.Sum, 2, i) }); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// The kernel gives a peer up whose host has not answered for 20 s. A peer that reads late is not lost: its host answers
// probes, and data that wait for a reader have no time limit.
func TestSilentHostsAreLost(t *testing.T) {
	var mu sync.Mutex
	var conns []*net.TCPConn
	world(t, 2, func(r int) *host.Options {
		o := &host.Options{HostID: fmt.Sprint(r)}
		o.SetDial(func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, network, addr)
			if err == nil {
				mu.Lock()
				defer mu.Unlock()
				conns = append(conns, c.(*net.TCPConn))
			}
			return c, err
		})
		return o
	}, nil)
	for _, c := range conns {
		raw, err := c.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		raw.Control(func(fd uintptr) {
			for option, want := range map[int]int{unix.TCP_KEEPIDLE: 5, unix.TCP_KEEPINTVL: 5, unix.TCP_KEEPCNT: 3, unix.TCP_USER_TIMEOUT: 0} {
				if got, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, option); got != want || err != nil {
					t.Errorf("the option %d of TCP is %d, %v, want %d", option, got, err, want)
				}
			}
			if on, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_KEEPALIVE); on != 1 || err != nil {
				t.Errorf("the kernel does not probe: %v", err)
			}
		})
	}
	if len(conns) == 0 {
		t.Error("the ranks have no connection")
	}
}
