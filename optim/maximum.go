package optim

import (
	_ "embed"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

//go:embed maximum.cu
var maximumSource string

// largestMagnitude is a kernel: the largest element of most becomes the largest magnitude in x. On a
// GPU most has one element for each block.
var largestMagnitude = device.NewModule("maximum.cu", maximumSource).
	Kernel("largest_magnitude", "most[blocks] x[n]", largestMagnitudeOnCPU[float32], largestMagnitudeOnCPU[float64])

// maximumThreads is the number of threads in a block of largestMagnitude.
const maximumThreads = 256

// maximum enqueues largestMagnitude.
func maximum(k kernels.Kernels, s device.Stream, most, x device.Tensor) error {
	g := device.Grid{Blocks: [3]int{most.Len()}, Threads: [3]int{maximumThreads}}
	return k.Launch(s, largestMagnitude, g, most.Flat(), x.Flat(), x.Len())
}

func largestMagnitudeOnCPU[T float32 | float64](most, x []T, n int) {
	clear(most)
	m := T(0)
	for _, v := range x[:n] {
		if v < 0 {
			v = -v
		}
		if v > m || v != v { // once m is NaN, no v is above it
			m = v
		}
	}
	most[0] = m
}
