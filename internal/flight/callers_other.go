//go:build !amd64 && !arm64

package flight

import "runtime"

// callers writes the return addresses on the goroutine's stack, innermost
// first, and returns how many there are. The first is where the function that
// calls it was called.
func callers(pcs *[maxFrames]uintptr) int { return runtime.Callers(3, pcs[:]) }
