package collective

import "runtime"

// FillHeap has Go's heap grow to what it is in a program that has run for a while,
// and be collected three times. Until then what a call allocates is memory that the
// kernel has yet to map, which takes longer than all the rest of the call.
func FillHeap() {
	var garbage []byte
	for range 16 << 10 {
		garbage = make([]byte, 1<<10)
	}
	runtime.KeepAlive(garbage)
}
