package host

import (
	"unsafe"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// allocGo returns a goBuffer, or an error if the host does not have enough memory.
func allocGo(size int) (device.Buffer, error) {
	if err := kernels.CheckMemory(size); err != nil {
		return device.Buffer{}, err
	}
	return goBuffer(size), nil
}

// goBuffer returns zeroed memory of Go's heap, aligned like memory of devices.
func goBuffer(size int) device.Buffer {
	mem := make([]byte, size+device.Align)
	at := int(-uintptr(unsafe.Pointer(unsafe.SliceData(mem))) & (device.Align - 1))
	return device.HostBuffer(mem[at:at+size:at+size], nil)
}
