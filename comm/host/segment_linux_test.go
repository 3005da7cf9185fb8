package host_test

import (
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/goddp/goddp/comm/backend"
	"github.com/goddp/goddp/comm/host"
	"github.com/goddp/goddp/device"
)

// mappings is how many segments this process has mapped, desks included.
func mappings(t *testing.T) int {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(maps), "/memfd:goddp")
}

// TestAllocFreed uses memory of Alloc's that nobody keeps. It must be unmapped
// on its owner and on the peers that reached it, while the group goes on.
func TestAllocFreed(t *testing.T) {
	groups := transports["shm"](t, 2)
	seq := uint64(0)
	reduceOnce := func() {
		seq++
		if err := exercise(groups, shared, seq, backend.AllReduce, backend.Sum, device.Float32, 10_000, 0, true); err != nil {
			t.Fatal(err)
		}
	}
	reduceOnce()
	base := mappings(t) // of this test and of those before it, to be freed yet
	const rounds = 100
	gc := debug.SetGCPercent(-1)
	for range rounds {
		reduceOnce()
	}
	debug.SetGCPercent(gc)
	all := mappings(t)
	if all < base+2*rounds { // each rank's own
		t.Fatalf("%d segments are mapped, %d after one round: nothing to free", all, base)
	}
	few := base + rounds // the last rounds' are not free yet
	for deadline := time.Now().Add(soon); mappings(t) > few; {
		if time.Now().After(deadline) {
			t.Fatalf("%d segments are mapped, %d after one round", mappings(t), base)
		}
		runtime.GC()
		reduceOnce() // tells the peers what was freed
	}
}

// TestAllocOutlives reads memory of Alloc's after its group was closed.
func TestAllocOutlives(t *testing.T) {
	groups := transports["shm"](t, 2)
	x := filled(shared, groups[0], device.Int32, 0, 0, 10_000)
	if err := each(groups, func(_ int, g *host.Group) error { return g.Close(t.Context()) }); err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	if err := expect("after Close", x, func(i int) float64 { return element(0, i) }); err != nil {
		t.Fatal(err)
	}
}
