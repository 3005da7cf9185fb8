package host

import (
	"unsafe"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/memcheck"
)

// allocGo is a goBuffer, if the host has room for it.
func allocGo(size int) (device.Buffer, error) {
	if err := memcheck.Check(size); err != nil {
		return device.Buffer{}, err
	}
	return goBuffer(size), nil
}

// goBuffer is zeroed memory of Go's heap, aligned as devices align theirs.
func goBuffer(size int) device.Buffer {
	mem := make([]byte, size+device.Align)
	at := int(-uintptr(unsafe.Pointer(unsafe.SliceData(mem))) & (device.Align - 1))
	return device.HostBuffer(mem[at:at+size:at+size], nil)
}
