package cpu

import "github.com/goddp/goddp/device"

func (k *kernelSet) MSE(_ device.Stream, dst, x, y device.Tensor) error {
	operands.MSE(dst, x, y)
	if dst.DType == device.Float32 {
		mse[float32](k, dst, x, y)
	} else {
		mse[float64](k, dst, x, y)
	}
	return nil
}

func (k *kernelSet) MSEGrad(_ device.Stream, dst device.Tensor, acc device.Accum, g, x, y device.Tensor) error {
	operands.MSEGrad(dst, g, x, y)
	if dst.DType == device.Float32 {
		mseGrad[float32](k, dst, acc, g, x, y)
	} else {
		mseGrad[float64](k, dst, acc, g, x, y)
	}
	return nil
}

// CrossEntropy computes 16-bit logits in Float32. They are the only 16-bit operands that the CPU's kernels
// take, apart from those of copies, because a loss is computed in Float32 whatever the type of a model.
func (k *kernelSet) CrossEntropy(s device.Stream, loss, lse, logits, labels device.Tensor) error {
	if logits.DType.Size() == 2 {
		wide, err := k.widened(s, logits)
		if err != nil {
			return err
		}
		logits = wide
	}
	_, n := operands.CrossEntropy(loss, lse, logits, labels)
	checkLabels(device.Elements[int64](labels), n)
	if loss.DType == device.Float32 {
		crossEntropy[float32](k, loss, lse, logits, labels)
	} else {
		crossEntropy[float64](k, loss, lse, logits, labels)
	}
	return nil
}

func (k *kernelSet) CrossEntropyGrad(s device.Stream, dst device.Tensor, acc device.Accum, g, lse, logits, labels device.Tensor) error {
	if logits.DType.Size() == 2 {
		wide, err := k.widened(s, logits)
		if err != nil {
			return err
		}
		sum, err := k.widened(s, dst)
		if err == nil {
			err = k.CrossEntropyGrad(s, sum, acc, g, lse, wide, labels)
		}
		if err != nil {
			return err
		}
		return k.Copy(s, dst, sum)
	}
	_, n := operands.CrossEntropyGrad(dst, g, lse, logits, labels)
	checkLabels(device.Elements[int64](labels), n)
	if dst.DType == device.Float32 {
		crossEntropyGrad[float32](k, dst, acc, g, lse, logits, labels)
	} else {
		crossEntropyGrad[float64](k, dst, acc, g, lse, logits, labels)
	}
	return nil
}

// CrossEntropyInPlace computes 16-bit logits in Float32, as CrossEntropy does.
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
	checkLabels(device.Elements[int64](labels), n)
	if logits.DType == device.Float32 {
		crossEntropyInPlace[float32](k, losses, logits, labels)
	} else {
		crossEntropyInPlace[float64](k, losses, logits, labels)
	}
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

func crossEntropy[T float](k *kernelSet, loss, lse, logits, labels device.Tensor) {
	sums, x, l := device.Elements[T](lse), device.Elements[T](logits), device.Elements[int64](labels)
	m, n := logits.Shape[0], logits.Shape[1]
	rows := max(chunk/max(n, 1), 1)
	s := k.total(m, rows, n, func(lo, hi int) (s float64) {
		for ; lo < hi; lo++ {
			row := x[lo*n : (lo+1)*n]
			sum := logSumExp(row)
			sums[lo] = T(sum)
			s += sum - float64(row[l[lo]])
		}
		return s
	})
	device.Elements[T](loss)[0] = T(s / float64(m))
}

func crossEntropyGrad[T float](k *kernelSet, dst device.Tensor, acc device.Accum, g, lse, logits, labels device.Tensor) {
	d, sums, x, l := device.Elements[T](dst), device.Elements[T](lse), device.Elements[T](logits), device.Elements[int64](labels)
	m, n := dst.Shape[0], dst.Shape[1]
	scale := T(float64(device.Elements[T](g)[0]) / float64(m))
	tiled(k, d, acc, func(t []T, lo int) {
		for r := lo / n; r < m && r*n < lo+len(t); r++ { // the part of row r that lies in the tile
			from, to := max(r*n-lo, 0), min((r+1)*n-lo, len(t))
			exps(t[from:to], x[lo+from:lo+to], sums[r])
			if i := r*n + int(l[r]) - lo; i >= 0 && i < len(t) {
				t[i] -= 1
			}
			for i := from; i < to; i++ {
				t[i] *= scale
			}
		}
	})
}

func crossEntropyInPlace[T float](k *kernelSet, losses, logits, labels device.Tensor) {
	sums, x, l := device.Elements[T](losses), device.Elements[T](logits), device.Elements[int64](labels)
	m, n := logits.Shape[0], logits.Shape[1]
	k.each(m, n, func(lo, hi int) {
		for ; lo < hi; lo++ {
			row, label := x[lo*n:(lo+1)*n], l[lo]
			sum := logSumExp(row)
			sums[lo] = T(sum - float64(row[label]))
			exps(row, row, T(sum))
			row[label] -= 1
		}
	})
}
