//go:build cgo && linux

package cuda

// #include "driver.h"
import "C"

import (
	"unsafe"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
	"github.com/goddp/goddp/internal/kernels"
)

// quantArgs has the layout of the structure Quant in kernels/quantized.cu.
type quantArgs struct {
	numbers, blocks, n uint64
	acc                device.Accum
	wide               uint64
}

// quantThreads is the number of threads, one warp, that write a block of quantized numbers.
const quantThreads = 32

func (k *kernelSet) Quantize(st device.Stream, dst, x device.Tensor) error {
	operand.Quantize("Quantize", x, dst)
	return k.quant(st, k.quantize, quantArgs{numbers: k.addr(x), blocks: k.addr(dst), n: uint64(x.Len())}, quantThreads)
}

func (k *kernelSet) Dequantize(st device.Stream, dst device.Tensor, acc device.Accum, x device.Tensor) error {
	operand.Quantize("Dequantize", dst, x)
	return k.quant(st, k.dequantize, quantArgs{numbers: k.addr(dst), blocks: k.addr(x), n: uint64(dst.Len()), acc: acc}, device.Align/4)
}

// quant launches a kernel of quantized.cu. each is the number of threads per block of quantized numbers.
func (k *kernelSet) quant(st device.Stream, f C.uintptr_t, a quantArgs, each int) error {
	if a.n == 0 {
		return nil
	}
	a.wide = uint64(flag(packed(a.numbers)))
	return k.launch(k.d.stream(st), f, k.flat(kernels.QuantBlocks(int(a.n))*each), unsafe.Pointer(&a), unsafe.Sizeof(a))
}
