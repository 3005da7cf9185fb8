//go:build cgo && linux

package cuda

// #include "driver.h"
import "C"

import (
	"unsafe"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
)

// copyArgs has the layout of the structure Copy in kernels/copy.cu.
type copyArgs struct {
	dst, src, n uint64
	value       float64
	wide        uint64
}

func (k *kernelSet) Fill(st device.Stream, dst device.Tensor, v float64) error {
	operand.Fill(dst)
	if dst.Len() == 0 {
		return nil
	}
	a := copyArgs{dst: k.addr(dst), n: uint64(dst.Len()), value: v}
	a.wide = uint64(flag(packed(a.dst)))
	return k.launch(k.d.stream(st), k.fill[dst.DType], k.flat(dst.Len()), unsafe.Pointer(&a), unsafe.Sizeof(a))
}

// Copy converts like the CPU's Copy: a float outside an integer type's range saturates, NaN becomes
// 0, and integers wrap around.
func (k *kernelSet) Copy(st device.Stream, dst, src device.Tensor) error {
	operand.Copy(dst, src)
	if dst.Len() == 0 {
		return nil
	}
	d, s := k.d, k.d.stream(st)
	a := copyArgs{dst: k.addr(dst), src: k.addr(src), n: uint64(dst.Len())}
	if dst.DType == src.DType {
		if err := d.Err(); err != nil {
			return err
		}
		return s.enqueued(d.check("cuMemcpyDtoDAsync",
			C.drv_copy(d.drv.fns, d.ctx, C.uint64_t(a.dst), C.uint64_t(a.src), C.size_t(dst.Bytes()), s.handle)))
	}
	aligned := func(at uint64, dt device.DType) bool { return at%uint64(min(4*dt.Size(), packBytes)) == 0 }
	a.wide = uint64(flag(aligned(a.dst, dst.DType) && aligned(a.src, src.DType)))
	return k.launch(s, k.copy[dst.DType][src.DType], k.flat(ceil(dst.Len(), 2)), unsafe.Pointer(&a), unsafe.Sizeof(a))
}
