package collective

import "runtime"

// FillHeap has Go's heap grow to what it is in a program that has run for a while:
// one that is small is collected some three times. Until then what a call allocates
// may be memory that the kernel has yet to map.
func FillHeap() {
	var garbage []byte
	for range 16 << 10 {
		garbage = make([]byte, 1<<10)
	}
	runtime.KeepAlive(garbage)
}
