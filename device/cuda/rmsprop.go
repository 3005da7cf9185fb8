//go:build cgo && linux

package cuda

import (
	"unsafe"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
	"github.com/goddp/goddp/internal/kernels"
)

// rmsPropArgs has the layout of the structure RMSProp in kernels/rmsprop.cu.
type rmsPropArgs struct {
	w, g, sq, m, v, s        uint64
	skip, overflow           uint64
	n, skips, overflows      uint64
	at                       uint64
	lr, alpha, fresh, eps    float64
	momentum, decay, unscale float64
	wide, _pad               int32
}

func (k *kernelSet) RMSProp(st device.Stream, p kernels.RMSPropStep) error {
	operand.RMSProp(p)
	n := p.Param.Len()
	if n == 0 {
		return nil
	}
	a := rmsPropArgs{
		w: k.addr(p.Param), g: k.addr(p.Grad), sq: k.addr(p.Square), n: uint64(n), at: k.optional(p.At),
		lr: p.LR, alpha: p.Alpha, fresh: 1 - p.Alpha, eps: p.Eps, momentum: p.Momentum, decay: p.WeightDecay, unscale: p.Unscale(),
	}
	if p.Centered {
		a.m = k.addr(p.Mean)
	}
	if p.Momentum != 0 {
		a.v = k.addr(p.Velocity)
	}
	a.skip, a.skips = k.flags(p.Skip)
	a.overflow, a.overflows = k.flags(p.Overflow)
	f := k.rmsProp[p.Param.DType]
	if !p.Master.IsZero() {
		a.s = k.addr(p.Master)
		f = k.rmsPropMaster[p.Param.DType]
		if p.Grad.DType == device.Float32 {
			f = k.rmsPropMasterWide[p.Param.DType]
		}
	}
	a.wide = flag(packed(a.w, a.g, a.sq, a.m, a.v, a.s))
	return k.launch(k.d.stream(st), f, k.flat(n), unsafe.Pointer(&a), unsafe.Sizeof(a))
}
