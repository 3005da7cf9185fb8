package autograd

import (
	"runtime"
	"testing"
	"time"

	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/internal/testkit"
)

// If collections take little of a program's time, unreachable leaves take no more memory than reachable
// leaves, or than some MiB. If a program does nothing but drop leaves, they take more memory, and
// collections take a bounded part of the time.
func TestDroppedLeavesTakeNoMoreThanTheModel(t *testing.T) {
	testkit.Long(t)
	const mib = 1 << 20
	for _, c := range []struct {
		leaf, held  int
		slow        bool // whether the program's steps take long
		most        int64
		collections uint32
	}{
		// Each collection frees the leaves dropped since the previous one, a little over 4 MiB.
		// The clean-ups of one collection may be late, on a busy machine those of two, so three
		// times that amount, less than 16 MiB, may be in use.
		{leaf: 4 << 10, slow: true, most: 16 * mib, collections: 128 / 4},
		{leaf: mib / 4, slow: true, most: 16 * mib, collections: 128 / 4},
		// A collection comes when as many bytes were dropped as the model has. The clean-ups of the
		// previous one may be late: the model and twice as much, and a leaf.
		{leaf: mib / 4, held: 16 * mib, slow: true, most: (3*16 + 1) * mib, collections: 128 / 8},
		{leaf: mib / 4, most: 72 * mib, collections: 8},
	} {
		dev := cpu.New(&cpu.Options{Threads: 1})
		defer dev.Close()
		s := stateOf(dev)
		model := FromSlice(dev, make([]float32, c.held/4))
		data := make([]float32, c.leaf/4)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range 128 * mib / c.leaf {
			if s.took = time.Hour; c.slow {
				s.took = 0
			}
			if err := FromSlice(dev, data).Err(); err != nil {
				t.Fatal(err)
			}
		}
		runtime.ReadMemStats(&after)
		if peak := dev.Memory().Peak; peak > c.most {
			t.Errorf("%+v: %d bytes at the peak", c, peak)
		}
		if n := after.NumForcedGC - before.NumForcedGC; n > c.collections {
			t.Errorf("%+v: %d collections", c, n)
		}
		runtime.KeepAlive(model)
	}
}
