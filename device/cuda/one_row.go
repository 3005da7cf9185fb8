//go:build cgo && linux

package cuda

import (
	"unsafe"

	"github.com/goddp/goddp/device"
)

// oneRowArgs has the layout of the structure OneRow in kernels/one_row.cu.
type oneRowArgs struct {
	y, x, w, bias uint64
	n, k          uint64
}

// linearOfOneRow computes a Linear of one row of 16-bit elements, and reports whether it did.
func (k *kernelSet) linearOfOneRow(st device.Stream, dst, x, w, bias device.Tensor, m, n, inner int) (done bool, err error) {
	if m != 1 || n == 0 || dst.DType.Size() != 2 || inner == 0 || inner%(packBytes/2) != 0 || !packed(k.addr(x), k.addr(w)) {
		return false, nil
	}
	a := oneRowArgs{y: k.addr(dst), x: k.addr(x), w: k.addr(w), bias: k.optional(bias), n: uint64(n), k: uint64(inner)}
	const warps = 4 // of a block
	return true, k.launch(k.d.stream(st), k.oneRow[dst.DType], grid{ceil(n, warps), 1, 1, warps * warp, 1}, unsafe.Pointer(&a), unsafe.Sizeof(a))
}
