package host

import (
	"fmt"
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

// BenchmarkReduce compares the reduction loops with copies. The rate counts the bytes of all
// operands.
func BenchmarkReduce(b *testing.B) {
	var work reduceScratch
	for _, size := range []int{256 << 10, 64 << 20} {
		for _, n := range []int{2, 4} {
			mem := make([][]byte, n)
			for i := range mem {
				mem[i] = make([]byte, size)
			}
			for _, dt := range []device.DType{device.Float32, device.Float64, device.BFloat16, device.Float16, device.Int32} {
				b.Run(fmt.Sprintf("%d×%dKiB/%v", n, size>>10, dt), func(b *testing.B) {
					b.SetBytes(int64(n * size))
					for b.Loop() {
						work.reduce(mem, mem, dt, backend.Sum, n)
					}
				})
			}
			b.Run(fmt.Sprintf("%d×%dKiB/copy", n, size>>10), func(b *testing.B) {
				b.SetBytes(int64(n * size))
				for b.Loop() {
					for i := range mem {
						copy(mem[i], mem[(i+1)%n])
					}
				}
			})
		}
	}
}
