//go:build cgo && linux

package cuda

import (
	"unsafe"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// oneRowArgs has the layout of the structure OneRow in kernels/one_row.cu.
type oneRowArgs struct {
	x        uint64
	products [3]productArgs
	k, warps uint32
}

type productArgs struct{ y, w, bias, n uint64 }

// linearsOfOneRow computes Linears of one row of 16-bit elements with one kernel, and reports whether it did.
func (k *kernelSet) linearsOfOneRow(st device.Stream, x device.Tensor, of []kernels.Projection) (done bool, err error) {
	m, inner := x.Shape[0], x.Shape[1]
	a := oneRowArgs{x: k.addr(x), k: uint32(inner)}
	if m != 1 || x.DType.Size() != 2 || inner == 0 || inner%(packBytes/2) != 0 || !packed(a.x) || len(of) > len(a.products) {
		return false, nil
	}
	// The weights of a thread are in flight at once if there are no more than 8 packs.
	const warps, ahead = 4, 8 * warp * packBytes / 2
	for a.warps = 1; a.warps < warps && int(a.warps)*ahead < inner; a.warps *= 2 {
	}
	n := 0
	var reads, writes []span
	for i, p := range of {
		a.products[i] = productArgs{y: k.addr(p.Dst), w: k.addr(p.W), bias: k.optional(p.Bias), n: uint64(p.W.Shape[0])}
		if !packed(a.products[i].w) {
			return false, nil
		}
		n += p.W.Shape[0]
		reads, writes = append(reads, k.spans(p.W)...), append(writes, k.spans(p.Dst)...)
	}
	if n == 0 {
		return true, nil
	}
	g := grid{ceil(n*int(a.warps), warps), 1, 1, warps * warp, 1}
	return true, k.launchEarly(k.d.stream(st), k.oneRow[x.DType], g, unsafe.Pointer(&a), unsafe.Sizeof(a), reads, writes)
}

// Linears computes the products of one row with one kernel.
func (k *kernelSet) Linears(st device.Stream, x device.Tensor, of []kernels.Projection) error {
	for _, p := range of {
		operands.Linear(p.Dst, x, p.W, p.Bias)
	}
	if done, err := k.linearsOfOneRow(st, x, of); done || err != nil {
		return err
	}
	for _, p := range of {
		if err := k.Linear(st, p.Dst, x, p.W, p.Bias, kernels.NoActivation); err != nil {
			return err
		}
	}
	return nil
}
