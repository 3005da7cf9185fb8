//go:build cgo && linux

package cuda

import (
	"unsafe"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
	"github.com/goddp/goddp/internal/kernels"
)

// adamWArgs has the layout of the structure AdamW in kernels/adamw.cu.
type adamWArgs struct {
	w, g, m, v, most, s          uint64
	skip, overflow               uint64
	n, skips, overflows          uint64
	beta1, fresh1, beta2, fresh2 float64
	at                           uint64
	rate, root, eps              float64
	coupled, kept, unscale       float64
	first, wide                  int32
}

func (k *kernelSet) AdamW(st device.Stream, p kernels.AdamWStep) error {
	operand.AdamW(p)
	n := p.Param.Len()
	if n == 0 {
		return nil
	}
	v := p.Numbers()
	a := adamWArgs{
		w: k.addr(p.Param), g: k.addr(p.Grad), m: k.addr(p.Mean), v: k.addr(p.Variance), n: uint64(n), at: k.optional(p.At),
		beta1: p.Beta1, fresh1: 1 - p.Beta1, beta2: p.Beta2, fresh2: 1 - p.Beta2,
		rate: v[0], root: v[1], eps: p.Eps, kept: v[2], unscale: v[3], first: flag(p.Step == 1),
	}
	if p.Coupled {
		a.coupled = p.WeightDecay
	}
	a.skip, a.skips = k.flags(p.Skip)
	a.overflow, a.overflows = k.flags(p.Overflow)
	f := k.adamW[p.Param.DType]
	if !p.Master.IsZero() {
		a.s = k.addr(p.Master)
		f = k.adamWMaster[p.Param.DType]
		if p.Grad.DType == device.Float32 {
			f = k.adamWMasterWide[p.Param.DType]
		}
	}
	if !p.MaxVariance.IsZero() {
		a.most = k.addr(p.MaxVariance)
	}
	a.wide = flag(packed(a.w, a.g, a.m, a.v, a.most, a.s))
	return k.launch(k.d.stream(st), f, k.flat(n), unsafe.Pointer(&a), unsafe.Sizeof(a))
}
