package host

import (
	"unsafe"

	"github.com/goddp/goddp/device"
)

// goBuffer is zeroed memory of Go's heap, aligned as devices align theirs.
func goBuffer(size int) device.Buffer {
	mem := make([]byte, size+device.Align)
	at := int(-uintptr(unsafe.Pointer(unsafe.SliceData(mem))) & (device.Align - 1))
	return device.HostBuffer(mem[at:at+size:at+size], nil)
}
