//go:build cgo && linux

package cuda

import (
	"unsafe"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
	"github.com/goddp/goddp/internal/kernels"
)

// sgdArgs has the layout of the structure SGD in kernels/sgd.cu.
type sgdArgs struct {
	w, g, v, m                          uint64
	skip, overflow                      uint64
	n, skips, overflows                 uint64
	at                                  uint64
	lr, momentum, fresh, decay, unscale float64
	nesterov, first, wide, _pad         int32
}

func (k *kernelSet) SGD(st device.Stream, p kernels.SGDStep) error {
	operand.SGD(p)
	n := p.Param.Len()
	if n == 0 {
		return nil
	}
	a := sgdArgs{
		w: k.addr(p.Param), g: k.addr(p.Grad), n: uint64(n), at: k.optional(p.At),
		lr: p.LR, momentum: p.Momentum, fresh: 1 - p.Dampening, decay: p.WeightDecay, unscale: p.Unscale(),
		nesterov: flag(p.Nesterov), first: flag(p.First),
	}
	if p.Momentum != 0 {
		a.v = k.addr(p.Velocity)
	}
	a.skip, a.skips = k.flags(p.Skip)
	a.overflow, a.overflows = k.flags(p.Overflow)
	f := k.sgd[p.Param.DType]
	if !p.Master.IsZero() {
		a.m = k.addr(p.Master)
		f = k.sgdMaster[p.Param.DType]
		if p.Grad.DType == device.Float32 {
			f = k.sgdMasterWide[p.Param.DType]
		}
	}
	a.wide = flag(packed(a.w, a.g, a.v, a.m))
	return k.launch(k.d.stream(st), f, k.flat(n), unsafe.Pointer(&a), unsafe.Sizeof(a))
}
