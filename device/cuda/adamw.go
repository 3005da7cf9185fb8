//go:build cgo && linux

package cuda

import (
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
	"github.com/goddp/goddp/internal/kernels"
)

// adamWArgs has the layout of the first members of the structure AdamW in kernels/adamw.cu.
type adamWArgs struct {
	skip, overflow               uint64
	skips, overflows             uint64
	beta1, fresh1, beta2, fresh2 float64
	at                           uint64
	rate, root, eps              float64
	coupled, kept, unscale       float64
	first, amsgrad               int32
}

// adamWPart has the layout of the structure AdamWPart.
type adamWPart struct {
	w, g, m, v, most, s, n uint64
	wide, _                int32
}

func (k *kernelSet) AdamW(st device.Stream, steps ...kernels.AdamWStep) error {
	u := updates[adamWArgs, adamWPart]{k: k, s: k.d.stream(st)}
	for i := range steps {
		p := &steps[i]
		operand.AdamW(*p)
		v := p.Numbers()
		a := adamWArgs{
			beta1: p.Beta1, fresh1: 1 - p.Beta1, beta2: p.Beta2, fresh2: 1 - p.Beta2, at: k.optional(p.At),
			rate: v[0], root: v[1], eps: p.Eps, kept: v[2], unscale: v[3], first: flag(p.Step == 1), amsgrad: flag(!p.MaxVariance.IsZero()),
		}
		if p.Coupled {
			a.coupled = p.WeightDecay
		}
		a.skip, a.skips = k.flags(p.Skip)
		a.overflow, a.overflows = k.flags(p.Overflow)
		part := adamWPart{w: k.addr(p.Param), g: k.addr(p.Grad), m: k.addr(p.Mean), v: k.addr(p.Variance), most: k.optional(p.MaxVariance), n: uint64(p.Param.Len())}
		f := k.adamW[p.Param.DType]
		if !p.Master.IsZero() {
			part.s = k.addr(p.Master)
			f = k.adamWMaster[p.Param.DType]
			if p.Grad.DType == device.Float32 {
				f = k.adamWMasterWide[p.Param.DType]
			}
		}
		part.wide = flag(packed(part.w, part.g, part.m, part.v, part.most, part.s))
		if err := u.add(f, a, part, p.Param.Len(), k.updateBlocks(p.Param.Len())); err != nil {
			return err
		}
	}
	return u.launch()
}
