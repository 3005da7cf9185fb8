package cpu

import (
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
	"github.com/goddp/goddp/internal/kernels"
)

func (k *kernelSet) BatchNorm(_ device.Stream, dst, residual device.Tensor, p kernels.BatchNorm) error {
	z := operands.BatchNorm("BatchNorm", p, dst, residual)
	pick(p.X, batchNorm[float32], batchNorm[float64])(k, z, dst, residual, p)
	return nil
}

func (k *kernelSet) BatchNormGradSums(_ device.Stream, sums, g device.Tensor, p kernels.BatchNorm) error {
	z := operands.BatchNormGradSums(sums, g, p)
	pick(p.X, batchNormGradSums[float32], batchNormGradSums[float64])(k, z, sums, g, p)
	return nil
}

func (k *kernelSet) BatchNormGrad(_ device.Stream, to kernels.BatchNormGrads, g, sums, count device.Tensor, p kernels.BatchNorm) error {
	z := operands.BatchNormGrad(to, g, sums, count, p)
	pick(p.X, batchNormGrad[float32], batchNormGrad[float64])(k, z, to, g, sums, count, p)
	return nil
}

// eachRun calls f for runs of elements [lo, hi), on several goroutines. The first is of channel c. All of a run are, or
// with one position (channels last) each is of the channel after that of the one before: step is 0 or 1. The runs are
// divided such that no two goroutines write the same byte of a mask.
func eachRun(k *kernelSet, z operand.NormSizes, f func(c, step, lo, hi int)) {
	n, length, step := z.N*z.C*z.L, z.L, 0
	if z.L == 1 {
		length, step = z.C, 1
	}
	k.each(kernels.MaskBytes(n), 8*4, func(lo, hi int) {
		for i, end := 8*lo, min(8*hi, n); i < end; {
			next := min((i/length+1)*length, end)
			f(i/z.L%z.C, step, i, next)
			i = next
		}
	})
}

func batchNorm[T float](k *kernelSet, z operand.NormSizes, dst, residual device.Tensor, p kernels.BatchNorm) {
	d, xs, rs := device.Elements[T](dst), device.Elements[T](p.X), device.Elements[T](residual)
	w, b := device.Elements[T](p.Weight), device.Elements[T](p.Bias)
	ms, mask := device.Elements[T](p.Mean), device.Elements[uint8](p.Mask)
	type coefficients struct{ mean, scale, shift T }
	of := make([]coefficients, z.C)
	for c, v := range device.Elements[T](p.Variance) {
		of[c] = coefficients{ms[c], inverse(v, p.Eps) * at(w, c, 1), at(b, c, 0)}
	}
	eachRun(k, z, func(c, step, lo, hi int) {
		for i := lo; i < hi; i++ {
			o := &of[c]
			v := (xs[i]-o.mean)*o.scale + o.shift
			if rs != nil {
				v += rs[i]
			}
			d[i] = v
			c += step
		}
		if p.ReLU {
			cutOff(d, mask, lo, hi)
		}
	})
}

// cutOff replaces the negative elements of d[lo:hi] by 0, and sets the bits of the mask, which may be nil.
func cutOff[T float](d []T, mask []uint8, lo, hi int) {
	if mask == nil {
		relu(d[lo:hi], d[lo:hi])
		return
	}
	bits := mask[lo/8] & (1<<(lo%8) - 1) // those of the run before
	for i := lo; i < hi; i++ {
		on := uint8(1)
		if d[i] <= 0 {
			on = 0
		}
		d[i] = max(d[i], 0)
		bits |= on << (i % 8)
		if i%8 == 7 || i == hi-1 {
			mask[i/8] = bits
			bits = 0
		}
	}
}

// masked returns g[i] if bit i of the mask is set, and otherwise 0. A nil mask has all bits set.
func masked[T float](g []T, mask []uint8, i int) T {
	if mask == nil {
		return g[i]
	}
	return [2]T{0, g[i]}[mask[i/8]>>(i%8)&1] // without a branch, which the processor could not predict
}

// maskOf returns the mask that gradients read, or nil.
func maskOf(p kernels.BatchNorm) []uint8 {
	if !p.ReLU {
		return nil
	}
	return device.Elements[uint8](p.Mask)
}

func batchNormGrad[T float](k *kernelSet, z operand.NormSizes, to kernels.BatchNormGrads, g, sums, count device.Tensor, p kernels.BatchNorm) {
	d, r := device.Elements[T](to.X), device.Elements[T](to.Residual)
	gs, xs, w := device.Elements[T](g), device.Elements[T](p.X), device.Elements[T](p.Weight)
	ms, vs, ss, mask := device.Elements[T](p.Mean), device.Elements[T](p.Variance), device.Elements[T](sums), maskOf(p)
	type coefficients struct{ scale, sum, product T }
	of := make([]coefficients, z.C)
	for c := range of {
		scale := inverse(vs[c], p.Eps)
		of[c].scale = scale * at(w, c, 1)
		if ss != nil {
			n := device.Elements[T](count)[0]
			of[c].sum, of[c].product = ss[c]/n, ss[z.C+c]/n*scale
		}
	}
	store := func(to []T, i int, acc device.Accum, v T) {
		v *= T(acc.Alpha)
		if acc.Beta != 0 {
			v += T(acc.Beta) * to[i]
		}
		to[i] = v
	}
	eachRun(k, z, func(c, step, lo, hi int) {
		for i := lo; i < hi; i++ {
			o, m := &of[c], ms[c]
			c += step
			h := masked(gs, mask, i)
			if r != nil {
				store(r, i, to.AccResidual, h)
			}
			if d != nil {
				store(d, i, to.AccX, o.scale*(h-o.sum-(xs[i]-m)*o.product))
			}
		}
	})
}

// batchNormGradSums adds the samples chunk by chunk. The chunks do not depend on the number of threads.
func batchNormGradSums[T float](k *kernelSet, z operand.NormSizes, sums, g device.Tensor, p kernels.BatchNorm) {
	gs, xs, ms, mask := device.Elements[T](g), device.Elements[T](p.X), device.Elements[T](p.Mean), maskOf(p)
	const most = 64 // the maximum number of chunks, which bounds their memory
	per := max((z.N+most-1)/most, chunk/max(z.C*z.L, 1), 1)
	chunks := (z.N + per - 1) / per
	parts := make([]float64, chunks*2*z.C)
	inverses := make([]T, z.C)
	for c, v := range device.Elements[T](p.Variance) {
		inverses[c] = inverse(v, p.Eps)
	}
	k.each(chunks, per*z.C*z.L, func(lo, hi int) {
		for ; lo < hi; lo++ {
			sum, product := parts[lo*2*z.C:][:z.C], parts[lo*2*z.C+z.C:][:z.C]
			for n := lo * per; n < min((lo+1)*per, z.N); n++ {
				for c := range z.C {
					from := (n*z.C + c) * z.L
					var s, q float64
					for i := from; i < from+z.L; i++ {
						h := float64(masked(gs, mask, i))
						s += h
						q += h * float64((xs[i]-ms[c])*inverses[c])
					}
					sum[c] += s
					product[c] += q
				}
			}
		}
	})
	fold(k, device.Elements[T](sums), device.Store, parts)
}
