package cpu

import (
	"math"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

func (k *kernelSet) MSE(_ device.Stream, dst, x, y device.Tensor) error {
	operands.MSE(dst, x, y)
	pick(dst, mse[float32], mse[float64])(k, dst, x, y)
	return nil
}

func (k *kernelSet) MSEGrad(_ device.Stream, dst device.Tensor, acc device.Accum, g, x, y device.Tensor) error {
	operands.MSEGrad(dst, g, x, y)
	pick(dst, mseGrad[float32], mseGrad[float64])(k, dst, acc, g, x, y)
	return nil
}

// CrossEntropy converts 16-bit logits to Float32. Besides copies, it is the only CPU kernel with 16-bit
// operands, because a loss is computed in Float32 for any type of model.
func (k *kernelSet) CrossEntropy(s device.Stream, loss, sums, logits, labels device.Tensor) error {
	if logits.DType.Size() == 2 {
		wide, err := k.widened(s, logits)
		if err != nil {
			return err
		}
		logits = wide
	}
	_, n := operands.CrossEntropy(loss, sums, logits, labels)
	checkLabels(device.Elements[int64](labels), n, false)
	pick(loss, crossEntropy[float32], crossEntropy[float64])(k, loss, sums, logits, labels)
	return nil
}

func (k *kernelSet) CrossEntropyGrad(s device.Stream, dst device.Tensor, acc device.Accum, g, sums, logits, labels device.Tensor) error {
	if logits.DType.Size() == 2 {
		wide, err := k.widened(s, logits)
		if err != nil {
			return err
		}
		sum, err := k.widened(s, dst)
		if err == nil {
			err = k.CrossEntropyGrad(s, sum, acc, g, sums, wide, labels)
		}
		if err != nil {
			return err
		}
		return k.Copy(s, dst, sum)
	}
	_, n := operands.CrossEntropyGrad(dst, g, sums, logits, labels)
	checkLabels(device.Elements[int64](labels), n, false)
	pick(dst, crossEntropyGrad[float32], crossEntropyGrad[float64])(k, dst, acc, g, sums, logits, labels)
	return nil
}

// CrossEntropyInPlace converts 16-bit logits to Float32, like CrossEntropy.
func (k *kernelSet) CrossEntropyInPlace(s device.Stream, losses, logits, labels device.Tensor) error {
	if logits.DType.Size() == 2 {
		wide, err := k.widened(s, logits)
		if err == nil {
			err = k.CrossEntropyInPlace(s, losses, wide, labels)
		}
		if err != nil {
			return err
		}
		return k.Copy(s, logits, wide)
	}
	_, n := operands.CrossEntropyInPlace(losses, logits, labels)
	checkLabels(device.Elements[int64](labels), n, true)
	pick(logits, crossEntropyInPlace[float32], crossEntropyInPlace[float64])(k, losses, logits, labels)
	return nil
}

// widened returns a copy of x in Float32.
func (k *kernelSet) widened(s device.Stream, x device.Tensor) (device.Tensor, error) {
	wide := device.HostTensor(make([]float32, x.Len()), device.Float32, x.Shape...)
	return wide, k.Copy(s, wide, x)
}

func mse[T float](k *kernelSet, dst, x, y device.Tensor) {
	xs, ys := device.Elements[T](x), device.Elements[T](y)
	s := k.total(len(xs), chunk, 1, func(lo, hi int) (s float64) {
		b := ys[lo:hi]
		for i, v := range xs[lo:hi] {
			d := float64(v) - float64(b[i])
			s += d * d
		}
		return s
	})
	device.Elements[T](dst)[0] = T(s / float64(len(xs)))
}

func mseGrad[T float](k *kernelSet, dst device.Tensor, acc device.Accum, g, x, y device.Tensor) {
	xs, ys := device.Elements[T](x), device.Elements[T](y)
	scale := T(2 * float64(device.Elements[T](g)[0]) / float64(len(xs)))
	tiled(k, device.Elements[T](dst), acc, func(t []T, lo int) {
		a, b := xs[lo:lo+len(t)], ys[lo:lo+len(t)]
		for i := range t {
			t[i] = scale * (a[i] - b[i])
		}
	})
}

func crossEntropy[T float](k *kernelSet, loss, sums, logits, labels device.Tensor) {
	each, x, l := device.Elements[float64](sums), device.Elements[T](logits), device.Elements[int64](labels)
	m, n := logits.Shape[0], logits.Shape[1]
	rows := max(chunk/max(n, 1), 1)
	s := k.total(m, rows, n, func(lo, hi int) (s float64) {
		for ; lo < hi; lo++ {
			each[lo], each[m+lo] = rowLoss(x[lo*n:(lo+1)*n], l[lo])
			s += each[lo]
		}
		return s
	})
	device.Elements[T](loss)[0] = T(s / float64(m))
}

// rowLoss returns log Σ e^(x[j] - x[label]), and log Σ e^x[j]. The first sum excludes the label's term,
// which is 1, so that a loss near 0 is accurate.
func rowLoss[T float](x []T, label int64) (loss, lse float64) {
	own, before, after := float64(x[label]), x[:label], x[label+1:]
	others := float64(max(largest(before), largest(after))) // log Σ e^x[j] without the label
	if top := others; !math.IsInf(top, -1) {
		others += math.Log(exps(nil, before, top) + exps(nil, after, top))
	}
	if math.IsInf(own, 1) {
		own = math.NaN()
	}
	loss = softplus(others - own)
	if math.IsInf(own, -1) {
		return loss, others
	}
	return loss, own + loss
}

// softplus returns log(1 + e^x).
func softplus(x float64) float64 { return max(x, 0) + math.Log1p(math.Exp(-math.Abs(x))) }

func crossEntropyGrad[T float](k *kernelSet, dst device.Tensor, acc device.Accum, g, sums, logits, labels device.Tensor) {
	d, each, x, l := device.Elements[T](dst), device.Elements[float64](sums), device.Elements[T](logits), device.Elements[int64](labels)
	m, n := dst.Shape[0], dst.Shape[1]
	scale := T(float64(device.Elements[T](g)[0]) / float64(m))
	tiled(k, d, acc, func(t []T, lo int) {
		for r := lo / n; r < m && r*n < lo+len(t); r++ { // for each row r that the tile intersects
			from, to := max(r*n-lo, 0), min((r+1)*n-lo, len(t))
			exps(t[from:to], x[lo+from:lo+to], each[m+r])
			if i := r*n + int(l[r]) - lo; i >= 0 && i < len(t) {
				t[i] = T(math.Expm1(-each[r]))
			}
			for i := from; i < to; i++ {
				t[i] *= scale
			}
		}
	})
}

func crossEntropyInPlace[T float](k *kernelSet, losses, logits, labels device.Tensor) {
	each, x, l := device.Elements[T](losses), device.Elements[T](logits), device.Elements[int64](labels)
	m, n := logits.Shape[0], logits.Shape[1]
	k.each(m, n, func(lo, hi int) {
		for ; lo < hi; lo++ {
			row := x[lo*n : (lo+1)*n]
			if l[lo] == kernels.NoLabel {
				clear(row)
				each[lo] = 0
				continue
			}
			loss, lse := rowLoss(row, l[lo])
			each[lo] = T(loss)
			exps(row, row, lse)
			row[l[lo]] = T(math.Expm1(-loss))
		}
	})
}
