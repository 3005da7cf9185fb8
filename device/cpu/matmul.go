package cpu

import (
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
	"github.com/goddp/goddp/internal/kernels"
)

func (k *kernelSet) MatMul(_ device.Stream, dst device.Tensor, acc device.Accum, x device.Tensor, tx bool, y device.Tensor, ty bool) error {
	k.gemm(dst, acc, x, tx, y, ty, operands.MatMul(dst, x, tx, y, ty))
	return nil
}

func (k *kernelSet) Linear(_ device.Stream, dst, x, w, bias device.Tensor, act kernels.Activation) error {
	m, n, kk := operands.Linear(dst, x, w, bias)
	k.gemm(dst, device.Store, x, false, w, true, operand.Product{M: m, N: n, K: kk, Batch: []operand.Axis{{N: 1}}})
	pick(dst, finish[float32], finish[float64])(k, dst, bias, act)
	return nil
}

func (k *kernelSet) Linears(s device.Stream, x device.Tensor, of []kernels.Projection) error {
	for _, p := range of {
		if err := k.Linear(s, p.Dst, x, p.W, p.Bias, kernels.NoActivation); err != nil {
			return err
		}
	}
	return nil
}

func (k *kernelSet) LinearGrad(s device.Stream, dw device.Tensor, accW device.Accum, db device.Tensor, accB device.Accum, g, x device.Tensor) error {
	operands.LinearGrad(dw, db, g, x)
	if err := k.MatMul(s, dw, accW, g, true, x, false); err != nil {
		return err
	}
	return k.Sum(s, db, accB, g)
}

// PrepareLinearGrad only checks its operands, because the CPU loads no kernels.
func (k *kernelSet) PrepareLinearGrad(_ device.Stream, y, x, w, bias device.Tensor) error {
	operands.Linear(y, x, w, bias)
	return nil
}

// gemm accumulates matrix products into dst. It divides their results among the threads.
func (k *kernelSet) gemm(dst device.Tensor, acc device.Accum, x device.Tensor, tx bool, y device.Tensor, ty bool, f operand.Product) {
	p := product{tx: tx, ty: ty, m: f.M, n: f.N, k: f.K, ldx: max(x.Shape[len(x.Shape)-1], 1), ldy: max(y.Shape[len(y.Shape)-1], 1), ldd: f.N}
	pick(dst, gemms[float32], gemms[float64])(k, p, acc, dst, x, y, f.Batch)
}

// gemms implements gemm for one element type.
func gemms[T float](k *kernelSet, p product, acc device.Accum, dst, x, y device.Tensor, batch []operand.Axis) {
	ds, xs, ys := device.Elements[T](dst), device.Elements[T](x), device.Elements[T](y)
	switch {
	case len(ds) == 0:
		return
	case p.k == 0:
		fold(k, ds, acc, nil)
		return
	}
	count := len(ds) / (p.m * p.n)
	cells := p.cells(k.blas, k.threads/gcd(count, k.threads))
	k.each(count*cells, p.work()/cells, func(lo, hi int) {
		for ; lo < hi; lo++ {
			i := lo / cells
			atX, atY := operand.Offset(batch, i)
			gemmCell(k.blas, p, lo%cells, cells, T(acc.Alpha), xs[atX*p.m*p.k:], ys[atY*p.k*p.n:], T(acc.Beta), ds[i*p.m*p.n:])
		}
	})
}

func gcd(a, b int) int {
	for b > 0 {
		a, b = b, a%b
	}
	return a
}

// finish adds the bias to every row of dst and applies act, in one pass.
func finish[T float](k *kernelSet, dst, bias device.Tensor, act kernels.Activation) {
	if bias.IsZero() && act == kernels.NoActivation {
		return
	}
	d, b := device.Elements[T](dst), device.Elements[T](bias)
	m, n := dst.Shape[0], dst.Shape[1]
	k.each(m, n, func(lo, hi int) {
		for ; lo < hi; lo++ {
			row := d[lo*n : (lo+1)*n]
			switch {
			case b == nil:
				relu(row, row)
			case act == kernels.ActReLU:
				for i, v := range b {
					row[i] = max(row[i]+v, 0)
				}
			default:
				for i, v := range b {
					row[i] += v
				}
			}
		}
	})
}
