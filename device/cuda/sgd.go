//go:build cgo && linux

package cuda

import (
	"unsafe"

	"github.com/goddp/goddp/device"
)

// sgdArgs is SGD in kernels/sgd.cu.
type sgdArgs struct {
	w, g, v, skip               uint64
	n, skips                    uint64
	lr, momentum, fresh, decay  float64
	nesterov, first, wide, _pad int32
}

func (k *kernels) SGD(st device.Stream, p device.SGDStep) error {
	operands.SGD(p)
	n := p.Param.Len()
	if n == 0 {
		return nil
	}
	a := sgdArgs{
		w: k.addr(p.Param), g: k.addr(p.Grad), n: uint64(n),
		lr: p.LR, momentum: p.Momentum, fresh: 1 - p.Dampening, decay: p.WeightDecay,
		nesterov: flag(p.Nesterov), first: flag(p.First),
	}
	if p.Momentum != 0 {
		a.v = k.addr(p.Velocity)
	}
	if !p.Skip.IsZero() {
		a.skip, a.skips = k.addr(p.Skip), uint64(p.Skip.Len())
	}
	a.wide = flag(packed(a.w, a.g, a.v))
	return k.launch(k.d.stream(st), k.sgd[p.Param.DType], k.flat(n), unsafe.Pointer(&a), unsafe.Sizeof(a))
}
