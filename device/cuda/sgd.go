//go:build cgo && linux

package cuda

import (
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
	"github.com/goddp/goddp/internal/kernels"
)

// sgdArgs has the layout of the first members of the structure SGD in kernels/sgd.cu.
type sgdArgs struct {
	skip, overflow                      uint64
	skips, overflows                    uint64
	at                                  uint64
	lr, momentum, fresh, decay, unscale float64
	nesterov, first                     int32
}

// sgdPart has the layout of the structure SGDPart.
type sgdPart struct {
	w, g, v, m, n uint64
	wide, _       int32
}

func (k *kernelSet) SGD(st device.Stream, steps ...kernels.SGDStep) error {
	u := updates[sgdArgs, sgdPart]{k: k, s: k.d.stream(st)}
	for i := range steps {
		p := &steps[i]
		operand.SGD(*p)
		a := sgdArgs{
			at: k.optional(p.At), lr: p.LR, momentum: p.Momentum, fresh: 1 - p.Dampening, decay: p.WeightDecay, unscale: p.Unscale(),
			nesterov: flag(p.Nesterov), first: flag(p.First),
		}
		a.skip, a.skips = k.flags(p.Skip)
		a.overflow, a.overflows = k.flags(p.Overflow)
		part := sgdPart{w: k.addr(p.Param), g: k.addr(p.Grad), n: uint64(p.Param.Len())}
		if p.Momentum != 0 {
			part.v = k.addr(p.Velocity)
		}
		f := k.sgd[p.Param.DType]
		if !p.Master.IsZero() {
			part.m = k.addr(p.Master)
			f = k.sgdMaster[p.Param.DType]
			if p.Grad.DType == device.Float32 {
				f = k.sgdMasterWide[p.Param.DType]
			}
		}
		part.wide = flag(packed(part.w, part.g, part.v, part.m))
		if err := u.add(f, a, part, p.Param.Len(), k.updateBlocks(p.Param.Len())); err != nil {
			return err
		}
	}
	return u.launch()
}
