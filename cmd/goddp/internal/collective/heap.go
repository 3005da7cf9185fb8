package collective

import "runtime"

// fillHeap grows Go's heap to the size that it has in a program that has run for a while. To do so, it
// allocates enough for about three garbage collections. In a smaller heap, allocations of a call may cause
// page faults.
func fillHeap() {
	var garbage []byte
	for range 16 << 10 {
		garbage = make([]byte, 1<<10)
	}
	runtime.KeepAlive(garbage)
}
