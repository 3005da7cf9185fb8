//go:build cgo && linux

package cuda

import (
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
	"github.com/goddp/goddp/internal/kernels"
)

// rmsPropArgs has the layout of the first members of the structure RMSProp in kernels/rmsprop.cu.
type rmsPropArgs struct {
	skip, overflow           uint64
	skips, overflows         uint64
	at                       uint64
	lr, alpha, fresh, eps    float64
	momentum, decay, unscale float64
	centered, moving         int32
}

// rmsPropPart has the layout of the structure RMSPropPart.
type rmsPropPart struct {
	w, g, sq, m, v, s, n uint64
	wide, _              int32
}

func (k *kernelSet) RMSProp(st device.Stream, steps ...kernels.RMSPropStep) error {
	u := updates[rmsPropArgs, rmsPropPart]{k: k, s: k.d.stream(st)}
	for i := range steps {
		p := &steps[i]
		operand.RMSProp(*p)
		a := rmsPropArgs{
			at: k.optional(p.At), lr: p.LR, alpha: p.Alpha, fresh: 1 - p.Alpha, eps: p.Eps, momentum: p.Momentum, decay: p.WeightDecay, unscale: p.Unscale(),
			centered: flag(p.Centered), moving: flag(p.Momentum != 0),
		}
		a.skip, a.skips = k.flags(p.Skip)
		a.overflow, a.overflows = k.flags(p.Overflow)
		part := rmsPropPart{w: k.addr(p.Param), g: k.addr(p.Grad), sq: k.addr(p.Square), n: uint64(p.Param.Len())}
		if p.Centered {
			part.m = k.addr(p.Mean)
		}
		if p.Momentum != 0 {
			part.v = k.addr(p.Velocity)
		}
		f := k.rmsProp[p.Param.DType]
		if !p.Master.IsZero() {
			part.s = k.addr(p.Master)
			f = k.rmsPropMaster[p.Param.DType]
			if p.Grad.DType == device.Float32 {
				f = k.rmsPropMasterWide[p.Param.DType]
			}
		}
		part.wide = flag(packed(part.w, part.g, part.sq, part.m, part.v, part.s))
		if err := u.add(f, a, part, p.Param.Len(), k.updateBlocks(p.Param.Len())); err != nil {
			return err
		}
	}
	return u.launch()
}
