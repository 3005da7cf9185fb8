//go:build !amd64 && !arm64

package flight

import "runtime"

// callers writes the return addresses on the goroutine's stack, innermost first, and returns
// their number. The first is the return address of its caller.
func callers(pcs *[maxFrames]uintptr) int { return runtime.Callers(3, pcs[:]) }
