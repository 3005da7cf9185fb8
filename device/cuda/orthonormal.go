//go:build cgo && linux

package cuda

import (
	"unsafe"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
)

// orthonormalArgs has the layout of the structure Orthonormal in kernels/orthonormal.cu.
type orthonormalArgs struct {
	x, substitute, rows, n uint64
}

// Orthonormalize runs in one block of threads, because there are few rows and each depends on the earlier ones.
func (k *kernelSet) Orthonormalize(st device.Stream, x, substitute device.Tensor) error {
	rows, n := operand.Orthonormalize(x, substitute)
	if rows == 0 {
		return nil
	}
	a := orthonormalArgs{k.addr(x), k.addr(substitute), uint64(rows), uint64(n)}
	return k.launch(k.d.stream(st), k.orthonormalize[x.DType], grid{1, 1, 1, 1024, 1}, unsafe.Pointer(&a), unsafe.Sizeof(a))
}
