//go:build amd64 || arm64

package flight

// callers writes the return addresses on the goroutine's stack, innermost first, and returns
// their number. The first is the return address of its caller. It follows frame pointers: 16
// frames take 18 ns, against 1.1 µs by runtime.Callers (medians of 10 alternating runs of
// BenchmarkCallers, which commit 9df8f79c has, on an Intel Xeon at 2.8 GHz).
//
//go:noescape
func callers(pcs *[maxFrames]uintptr) int
