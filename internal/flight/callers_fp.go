//go:build amd64 || arm64

package flight

// callers writes the return addresses on the goroutine's stack, innermost
// first, and returns how many there are. The first is where the function that
// calls it was called. It follows frame pointers, which
// takes a tenth of the time of runtime.Callers.
//
//go:noescape
func callers(pcs *[maxFrames]uintptr) int
