package devicetest

import (
	"fmt"
	"math"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// checkBatchNormReLU checks batch norms with a residual and a ReLU, and their gradients.
func checkBatchNormReLU(r *rig) {
	each(r, []normCase{{n: 5, c: 8, l: 1}, {n: 300, c: 24, l: 1}, {n: 3, c: 5, l: 7}, {n: 2, c: 16, l: 3}, {n: 0, c: 8, l: 1}}, func(c normCase) {
		shape := device.Shape{c.n, c.c, c.l}
		n := shape.Len()
		x, g, residual := r.random(-2, 2, shape...), r.random(-2, 2, shape...), r.random(-1, 1, shape...)
		weight, bias := r.random(1, 2, c.c), r.random(-1, 1, c.c)
		mean, variance := make([]float64, c.c), make([]float64, c.c)
		for i := range mean {
			mean[i], variance[i] = round(kernels.StatType(r.dt), r.rnd.Float64()-0.5), 1
		}
		y, h := make([]float64, n), array{shape, make([]float64, n)}
		for _, added := range []bool{false, true} {
			sums := value{newArray(2, c.c), make([]float64, 2*c.c), r.slack(c)}
			want := value{newArray(shape...), make([]float64, n), r.slack(c)}
			scale := 1 / math.Sqrt(1+normEps)
			result := func(i int) float64 {
				ch := i / c.l % c.c
				y[i] = (x.v[i] - mean[ch]) * scale
				v := y[i]*weight.v[ch] + bias.v[ch]
				if added {
					v += residual.v[i]
				}
				return v
			}
			for i := range n {
				ch := i / c.l % c.c
				if math.Abs(result(i)) < 0.01 { // devices need not agree on its sign
					x.v[i] = round(r.dt, x.v[i]+0.25)
				}
				v := result(i)
				want.v[i], want.scale[i] = max(v, 0), 3*math.Abs(weight.v[ch])+2
				if h.v[i] = g.v[i]; v <= 0 {
					h.v[i] = 0
				}
				sums.v[ch] += h.v[i]
				sums.scale[ch] += math.Abs(h.v[i])
				sums.v[c.c+ch] += h.v[i] * y[i]
				sums.scale[c.c+ch] += 3 * math.Abs(h.v[i])
			}
			mask := r.place(device.Uint8, device.Shape{kernels.MaskBytes(n)}, make([]byte, kernels.MaskBytes(n)))
			p := kernels.BatchNorm{
				X: r.put(x).Tensor, Mean: r.stat(mean, c.c).Tensor, Variance: r.stat(variance, c.c).Tensor,
				Weight: r.put(weight).Tensor, Bias: r.put(bias).Tensor, Eps: normEps, ReLU: true,
			}
			var pr device.Tensor
			if added {
				pr = r.put(residual).Tensor
			}
			label := fmt.Sprintf("batch norm %+v with ReLU, residual %v", c, added)
			r.result(label+" without a mask", want, func(dst device.Tensor) error { return r.k.BatchNorm(r.s, dst, pr, p) })
			p.Mask = mask.Tensor
			r.result(label, want, func(dst device.Tensor) error { return r.k.BatchNorm(r.s, dst, pr, p) })
			for i, b := range r.read(label+": mask", mask) {
				for j := 8 * i; j < min(8*i+8, n); j++ {
					if on := want.v[j] > 0; (b>>(j%8)&1 == 1) != on {
						r.fail("%s: bit %d of the mask is %v, want %v", label, j, !on, on)
					}
				}
			}
			pg := r.put(g)
			got := r.stat(make([]float64, 2*c.c), 2, c.c)
			r.ok(label, r.k.BatchNormGradSums(r.s, got.Tensor, pg.Tensor, p))
			r.same(label+": sums", got, sums)

			dx := value{newArray(shape...), make([]float64, n), r.slack(c)}
			count := float64(max(c.n*c.l, 1))
			for i, v := range h.v {
				ch := i / c.l % c.c
				dx.v[i] = scale * weight.v[ch] * (v - sums.v[ch]/count - y[i]*sums.v[c.c+ch]/count)
				dx.scale[i] = 2 * (math.Abs(v) + (sums.scale[ch]+3*sums.scale[c.c+ch])/count)
			}
			pc := r.stat([]float64{count})
			dr := value{h, nil, 4}
			r.accumulates(label+": gradient", dx, func(dst device.Tensor, acc device.Accum) error {
				return r.k.BatchNormGrad(r.s, kernels.BatchNormGrads{X: dst, AccX: acc}, pg.Tensor, got.Tensor, pc.Tensor, p)
			})
			both := r.put(nan(shape))
			r.accumulates(label+": gradient of the residual", dr, func(dst device.Tensor, acc device.Accum) error {
				return r.k.BatchNormGrad(r.s, kernels.BatchNormGrads{X: both.Tensor, AccX: device.Store, Residual: dst, AccResidual: acc}, pg.Tensor, got.Tensor, pc.Tensor, p)
			})
			r.same(label+": gradient beside that of the residual", both, dx)
		}
	})
}
