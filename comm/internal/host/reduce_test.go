package host

import (
	"testing"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
)

// A reduction must not allocate memory, because each training step runs many reductions.
func TestReduceAllocatesNothing(t *testing.T) {
	mem, work := [][]byte{make([]byte, 2*cacheBlock), make([]byte, 2*cacheBlock)}, new(reduceScratch)
	for dt := device.Float32; dt.Size() > 0; dt++ {
		for op := backend.Sum; op <= backend.PreMulSum; op++ {
			n := testing.AllocsPerRun(10, func() {
				work.multiply(mem[0], mem[0], dt, 0.5)
				work.reduce(mem, mem, dt, op, len(mem))
			})
			if n != 0 {
				t.Errorf("%v of %v: %v allocations, want none", op, dt, n)
			}
		}
	}
}
