package autograd

import (
	"runtime"
	"testing"
	"time"

	"github.com/goddp/goddp/device/cpu"
)

// In a program whose collections cost little of its time, leaves that it dropped take no
// more memory than those that it holds, or than some MiB; in one that does nothing else
// but drop leaves they take more, and collections a part of the time.
func TestDroppedLeavesTakeNoMoreThanTheModel(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		leaf, held  int
		slow        bool // the steps of the program take long
		most        int64
		collections uint32
	}{
		// A collection frees what was dropped since the one before, somewhat over 4 MiB.
		// The collector's clean-ups may be late for one, and for the next on a busy
		// machine: 16 MiB hold three such lots.
		{leaf: 4 << 10, slow: true, most: 16 * mib, collections: 128 / 4},
		{leaf: mib / 4, slow: true, most: 16 * mib, collections: 128 / 4},
		{leaf: mib / 4, held: 16 * mib, slow: true, most: (2*16 + 8) * mib, collections: 128 / 8},
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
