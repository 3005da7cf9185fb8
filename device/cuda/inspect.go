//go:build cgo && linux

package cuda

// #include "driver.h"
import "C"

import (
	"unsafe"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
)

// inspectArgs has the layout of the structure Inspect in kernels/inspect.cu.
type inspectArgs struct {
	dst, src, bytes uint64
	exponent, sign  uint64
	wide            uint64
}

// wordBytes is the size of the words in which the kernels read an array.
const wordBytes = 8

// patterns holds, for each type, a word with the exponent bits of all its elements set, and one
// with the sign bits set.
var patterns = [...]struct{ exponent, sign uint64 }{
	device.Float32:  {0x7F800000_7F800000, 0x80000000_80000000},
	device.Float64:  {0x7FF00000_00000000, 0x80000000_00000000},
	device.Float16:  {0x7C00_7C00_7C00_7C00, 0x8000_8000_8000_8000},
	device.BFloat16: {0x7F80_7F80_7F80_7F80, 0x8000_8000_8000_8000},
}

func (k *kernelSet) NonFinite(st device.Stream, flag, x device.Tensor) error {
	operand.NonFinite(flag, x)
	p := patterns[x.DType]
	return k.inspect(st, k.nonFinite, inspectArgs{dst: k.addr(flag), exponent: p.exponent, sign: p.sign}, x)
}

// Hash adds integers atomically, so the order of the additions does not change the sum.
func (k *kernelSet) Hash(st device.Stream, dst, x device.Tensor) error {
	operand.Hash(dst, x)
	return k.inspect(st, k.hash, inspectArgs{dst: k.addr(dst)}, x)
}

// inspect launches a kernel of inspect.cu over x. It uses only as many threads as the GPU runs at a
// time, because each thread ends with an access to dst.
func (k *kernelSet) inspect(st device.Stream, f C.uintptr_t, a inspectArgs, x device.Tensor) error {
	if x.Len() == 0 {
		return nil
	}
	a.src, a.bytes = k.addr(x), uint64(x.Bytes())
	a.wide = uint64(flag(packed(a.src)))
	g := grid{min(ceil(ceil(x.Bytes(), wordBytes), threads), k.d.props.sms*8), 1, 1, threads, 1}
	return k.launch(k.d.stream(st), f, g, unsafe.Pointer(&a), unsafe.Sizeof(a))
}
