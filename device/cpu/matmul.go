package cpu

import "github.com/goddp/goddp/device"

func (k *kernels) MatMul(_ device.Stream, dst device.Tensor, acc device.Accum, x device.Tensor, tx bool, y device.Tensor, ty bool) error {
	m, n, kk := operands.MatMul(dst, x, tx, y, ty)
	k.gemm(dst, acc, x, tx, y, ty, m, n, kk)
	return nil
}

func (k *kernels) Linear(_ device.Stream, dst, x, w, bias device.Tensor, act device.Activation) error {
	m, n, kk := operands.Linear(dst, x, w, bias)
	k.gemm(dst, device.Store, x, false, w, true, m, n, kk)
	if dst.DType == device.Float32 {
		finish[float32](k, dst, bias, act)
	} else {
		finish[float64](k, dst, bias, act)
	}
	return nil
}

func (k *kernels) LinearGrad(s device.Stream, dw device.Tensor, accW device.Accum, db device.Tensor, accB device.Accum, g, x device.Tensor) error {
	operands.LinearGrad(dw, db, g, x)
	if err := k.MatMul(s, dw, accW, g, true, x, false); err != nil {
		return err
	}
	return k.Sum(s, db, accB, g)
}

// PrepareLinearGrad does nothing: everything is loaded.
func (k *kernels) PrepareLinearGrad(_ device.Stream, y, x, w, bias device.Tensor) error {
	operands.Linear(y, x, w, bias)
	return nil
}

// gemm accumulates op(x)·op(y), [m kk] and [kk n], into dst.
func (k *kernels) gemm(dst device.Tensor, acc device.Accum, x device.Tensor, tx bool, y device.Tensor, ty bool, m, n, kk int) {
	if m == 0 || n == 0 {
		return
	}
	p := product{tx: tx, ty: ty, m: m, n: n, k: kk, ldx: max(x.Shape[1], 1), ldy: max(y.Shape[1], 1)}
	if dst.DType == device.Float32 {
		if kk == 0 {
			fold(k, device.Elements[float32](dst), acc, nil)
			return
		}
		k.blas.gemm32(p, float32(acc.Alpha), device.Elements[float32](x), device.Elements[float32](y), float32(acc.Beta), device.Elements[float32](dst))
		return
	}
	if kk == 0 {
		fold(k, device.Elements[float64](dst), acc, nil)
		return
	}
	k.blas.gemm64(p, acc.Alpha, device.Elements[float64](x), device.Elements[float64](y), acc.Beta, device.Elements[float64](dst))
}

// finish adds the bias to every row of dst and applies act, in one pass.
func finish[T float](k *kernels, dst, bias device.Tensor, act device.Activation) {
	if bias.IsZero() && act == device.NoActivation {
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
			case act == device.ActReLU:
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
