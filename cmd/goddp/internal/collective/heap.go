package collective

import "runtime"

// fillHeap grows Go's heap to its size in a program that has run for a while, by allocating enough
// for about three garbage collections. Before that, allocations of a call may cause page faults.
func fillHeap() {
	var garbage []byte
	for range 16 << 10 {
		garbage = make([]byte, 1<<10)
	}
	runtime.KeepAlive(garbage)
}
