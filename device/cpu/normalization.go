package cpu

import (
	"math"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
	"github.com/goddp/goddp/internal/kernels"
)

func (k *kernelSet) GroupNorm(_ device.Stream, dst, mean, variance, x, weight, bias device.Tensor, p kernels.Norm) error {
	z := operands.GroupNorm(dst, mean, variance, x, weight, bias, p)
	pick(x, groupNorm[float32], groupNorm[float64])(k, z, dst, mean, variance, x, weight, bias, p)
	return nil
}

func (k *kernelSet) AddGroupNorm(s device.Stream, dst, sum, mean, variance, x, y, weight, bias device.Tensor, p kernels.Norm) error {
	operands.AddGroupNorm(dst, sum, mean, variance, x, y, weight, bias, p)
	if err := k.Binary(s, kernels.Add, sum, x, y); err != nil {
		return err
	}
	return k.GroupNorm(s, dst, mean, variance, sum, weight, bias, p)
}

func (k *kernelSet) GroupNormGrad(_ device.Stream, to kernels.NormGrads, g, x, mean, variance, weight device.Tensor, p kernels.Norm) error {
	z := operands.GroupNormGrad(to, g, x, mean, variance, weight, p)
	pick(x, groupNormGrads[float32], groupNormGrads[float64])(k, z, to, g, x, mean, variance, weight, p)
	return nil
}

func (k *kernelSet) Moments(_ device.Stream, mean, variance, x device.Tensor) error {
	z := operands.Moments(mean, variance, x)
	pick(x, moments[float32], moments[float64])(k, z, mean, variance, x)
	return nil
}

func (k *kernelSet) MergeMoments(_ device.Stream, mean, variance, count, parts device.Tensor) error {
	r, c := operand.MergeMoments(mean, variance, count, parts)
	pick(mean, mergeMoments[float32], mergeMoments[float64])(mean, variance, count, parts, r, c)
	return nil
}

func (k *kernelSet) TrackMoments(_ device.Stream, runningMean, runningVariance, batches, mean, variance, count device.Tensor, momentum float64) error {
	operand.TrackMoments(runningMean, runningVariance, batches, mean, variance, count)
	device.Elements[int64](batches)[0]++
	pick(mean, trackMoments[float32], trackMoments[float64])(runningMean, runningVariance, mean, variance, count, momentum)
	return nil
}

// at returns v[i], or absent if v is nil.
func at[T float](v []T, i int, absent T) T {
	if v == nil {
		return absent
	}
	return v[i]
}

// inverse returns 1/√(variance + eps).
func inverse[T float](variance T, eps float64) T { return T(1 / math.Sqrt(float64(variance)+eps)) }

// squares returns the sum of (x - mean)², in four lanes as addRun does.
func squares[T float](x []T, mean float64) float64 {
	var a, b, c, d float64
	for ; len(x) >= 4; x = x[4:] {
		p, q, r, s := float64(x[0])-mean, float64(x[1])-mean, float64(x[2])-mean, float64(x[3])-mean
		a += p * p
		b += q * q
		c += r * r
		d += s * s
	}
	for _, v := range x {
		e := float64(v) - mean
		a += e * e
	}
	return (a + b) + (c + d)
}

// affine computes dst = (x - mean)·scale + shift.
func affine[T float](dst, x []T, mean, scale, shift T) {
	x = x[:len(dst)]
	for i, v := range x {
		dst[i] = (v-mean)*scale + shift
	}
}

// groupNorm computes the moments of a group in two passes, the mean first. So a variance that is small compared with
// the mean stays accurate.
func groupNorm[T float](k *kernelSet, z operand.NormSizes, dst, mean, variance, x, weight, bias device.Tensor, p kernels.Norm) {
	d, xs, w, b := device.Elements[T](dst), device.Elements[T](x), device.Elements[T](weight), device.Elements[T](bias)
	ms, vs := device.Elements[T](mean), device.Elements[T](variance)
	rows, cols := z.Rows(p)
	k.each(rows, 3*cols, func(lo, hi int) {
		for r := lo; r < hi; r++ {
			in, out := xs[r*cols:(r+1)*cols], d[r*cols:(r+1)*cols]
			var m float64
			if !p.Uncentered {
				m = addRun(in) / float64(cols)
				ms[r] = T(m)
			}
			vs[r] = T(squares(in, m) / float64(cols))
			scale, first := inverse(vs[r], p.Eps), r%p.Groups*(z.C/p.Groups)
			if z.L == 1 {
				for i, v := range in {
					out[i] = (v-T(m))*scale*at(w, first+i, 1) + at(b, first+i, 0)
				}
				continue
			}
			for i := 0; i < cols; i += z.L {
				c := first + i/z.L
				affine(out[i:i+z.L], in[i:], T(m), scale*at(w, c, 1), at(b, c, 0))
			}
		}
	})
}

func groupNormGrads[T float](k *kernelSet, z operand.NormSizes, to kernels.NormGrads, g, x, mean, variance, weight device.Tensor, p kernels.Norm) {
	if !to.X.IsZero() {
		groupNormGrad[T](k, z, to, g, x, mean, variance, weight, p)
	}
	if to.Weight.IsZero() && to.Bias.IsZero() {
		return
	}
	sums := make([]T, 2*z.C)
	normGradSums(k, z, sums, g, x, mean, variance, p)
	for i, v := range []struct {
		device.Tensor
		device.Accum
	}{{to.Bias, to.AccBias}, {to.Weight, to.AccWeight}} {
		tiled(k, device.Elements[T](v.Tensor), v.Accum, func(t []T, lo int) { copy(t, sums[i*z.C+lo:]) })
	}
}

// groupNormGrad computes the gradient of x. With h = g·weight and y the normalised x, it is
// (h - mean(h) - y·mean(h·y))/√(variance + eps), without mean(h) if x is not centered.
func groupNormGrad[T float](k *kernelSet, z operand.NormSizes, to kernels.NormGrads, g, x, mean, variance, weight device.Tensor, p kernels.Norm) {
	d, gs, xs, w := device.Elements[T](to.X), device.Elements[T](g), device.Elements[T](x), device.Elements[T](weight)
	ms, vs, add := device.Elements[T](mean), device.Elements[T](variance), device.Elements[T](to.Addend)
	rows, cols := z.Rows(p)
	alpha, beta := T(to.AccX.Alpha), T(to.AccX.Beta)
	k.each(rows, 3*cols, func(lo, hi int) {
		h := make([]T, cols)
		for r := lo; r < hi; r++ {
			in, grad, out := xs[r*cols:(r+1)*cols], gs[r*cols:(r+1)*cols], d[r*cols:(r+1)*cols]
			m, scale, first := at(ms, r, 0), inverse(vs[r], p.Eps), r%p.Groups*(z.C/p.Groups)
			switch {
			case w == nil:
				copy(h, grad)
			case z.L == 1:
				for i, v := range grad {
					h[i] = v * w[first+i]
				}
			default:
				for i := range h {
					h[i] = grad[i] * w[first+i/z.L]
				}
			}
			var sum, product float64
			for i, v := range h {
				sum += float64(v)
				product += float64(v) * float64((in[i]-m)*scale)
			}
			if p.Uncentered {
				sum = 0
			}
			sum, product = sum/float64(cols), product/float64(cols)
			for i, v := range h {
				v = alpha * (scale*(v-T(sum)-(in[i]-m)*scale*T(product)) + at(add, r*cols+i, 0))
				if beta != 0 {
					v += beta * out[i]
				}
				out[i] = v
			}
		}
	})
}

func moments[T float](k *kernelSet, z operand.NormSizes, mean, variance, x device.Tensor) {
	xs, ms, vs := device.Elements[T](x), device.Elements[T](mean), device.Elements[T](variance)
	count := float64(z.N * z.L)
	k.each(z.C, 2*z.N*z.L, func(lo, hi int) {
		sum, square := make([]float64, hi-lo), make([]float64, hi-lo)
		for n := range z.N {
			if z.L == 1 {
				for c, v := range xs[n*z.C+lo : n*z.C+hi] {
					sum[c] += float64(v)
				}
				continue
			}
			for c := range sum {
				at := (n*z.C + lo + c) * z.L
				sum[c] += addRun(xs[at : at+z.L])
			}
		}
		for c := range sum {
			sum[c] /= count
		}
		for n := range z.N {
			if z.L == 1 {
				for c, v := range xs[n*z.C+lo : n*z.C+hi] {
					square[c] += (float64(v) - sum[c]) * (float64(v) - sum[c])
				}
				continue
			}
			for c := range sum {
				at := (n*z.C + lo + c) * z.L
				square[c] += squares(xs[at:at+z.L], sum[c])
			}
		}
		for c := range sum {
			ms[lo+c], vs[lo+c] = T(sum[c]), T(square[c]/count)
		}
	})
}

func mergeMoments[T float](mean, variance, count, parts device.Tensor, ranks, c int) {
	ms, vs, ps := device.Elements[T](mean), device.Elements[T](variance), device.Elements[T](parts)
	row := func(r int) []T { return ps[r*(2*c+1) : (r+1)*(2*c+1)] }
	var total float64
	for r := range ranks {
		total += float64(row(r)[2*c])
	}
	device.Elements[T](count)[0] = T(total)
	for i := range ms {
		var m, v float64
		for r := range ranks {
			if n := float64(row(r)[2*c]); n > 0 {
				m += n / total * float64(row(r)[i])
			}
		}
		for r := range ranks {
			if n := float64(row(r)[2*c]); n > 0 {
				d := float64(row(r)[i]) - m
				v += n / total * (float64(row(r)[c+i]) + d*d)
			}
		}
		ms[i], vs[i] = T(m), T(v)
	}
}

func trackMoments[T float](runningMean, runningVariance, mean, variance, count device.Tensor, momentum float64) {
	ms, vs := device.Elements[T](runningMean), device.Elements[T](runningVariance)
	m, v, n := device.Elements[T](mean), device.Elements[T](variance), float64(device.Elements[T](count)[0])
	if n == 0 {
		return
	}
	unbiased := n / max(n-1, 1)
	for i := range ms {
		ms[i] = T((1-momentum)*float64(ms[i]) + momentum*float64(m[i]))
		vs[i] = T((1-momentum)*float64(vs[i]) + momentum*float64(v[i])*unbiased)
	}
}

// normGradSums computes the sums of g, and of g times the normalised x, for each channel of a GroupNorm. It adds
// the samples chunk by chunk. The chunks do not depend on the number of threads.
func normGradSums[T float](k *kernelSet, z operand.NormSizes, sums []T, g, x, mean, variance device.Tensor, p kernels.Norm) {
	gs, xs := device.Elements[T](g), device.Elements[T](x)
	ms, vs := device.Elements[T](mean), device.Elements[T](variance)
	const most = 64 // the maximum number of chunks, which bounds their memory
	per := max((z.N+most-1)/most, chunk/max(z.C*z.L, 1), 1)
	chunks := (z.N + per - 1) / per
	parts := make([]float64, chunks*2*z.C)
	inverses := make([]T, len(vs))
	for i, v := range vs {
		inverses[i] = inverse(v, p.Eps)
	}
	k.each(chunks, per*z.C*z.L, func(lo, hi int) {
		for ; lo < hi; lo++ {
			part := parts[lo*2*z.C : (lo+1)*2*z.C]
			sum, product := part[:z.C], part[z.C:]
			for n := lo * per; n < min((lo+1)*per, z.N); n++ {
				if z.L == 1 {
					wide := z.C / p.Groups
					for i := 0; i < z.C; i += wide {
						group := n*p.Groups + i/wide
						m, scale := at(ms, group, 0), inverses[group]
						from := n*z.C + i
						in, s, q := xs[from:from+wide], sum[i:i+wide], product[i:i+wide]
						for j, v := range gs[from : from+wide] {
							s[j] += float64(v)
							q[j] += float64(v) * float64((in[j]-m)*scale)
						}
					}
					continue
				}
				for c := range sum {
					group := n*p.Groups + c/(z.C/p.Groups)
					m, scale := at(ms, group, 0), inverses[group]
					from := (n*z.C + c) * z.L
					in := xs[from : from+z.L]
					var s, q float64
					for i, v := range gs[from : from+z.L] {
						s += float64(v)
						q += float64(v) * float64((in[i]-m)*scale)
					}
					sum[c] += s
					product[c] += q
				}
			}
		}
	})
	fold(k, sums, device.Store, parts)
}
