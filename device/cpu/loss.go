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

func (k *kernelSet) CrossEntropy(_ device.Stream, loss, probs, logits, labels device.Tensor) error {
	_, n := operands.CrossEntropy(loss, probs, logits, labels)
	checkLabels(device.Elements[int64](labels), n)
	if loss.DType == device.Float32 {
		crossEntropy[float32](k, loss, probs, logits, labels)
	} else {
		crossEntropy[float64](k, loss, probs, logits, labels)
	}
	return nil
}

func (k *kernelSet) CrossEntropyGrad(_ device.Stream, dst device.Tensor, acc device.Accum, g, probs, labels device.Tensor) error {
	_, n := operands.CrossEntropyGrad(dst, g, probs, labels)
	checkLabels(device.Elements[int64](labels), n)
	if dst.DType == device.Float32 {
		crossEntropyGrad[float32](k, dst, acc, g, probs, labels)
	} else {
		crossEntropyGrad[float64](k, dst, acc, g, probs, labels)
	}
	return nil
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

func crossEntropy[T float](k *kernelSet, loss, probs, logits, labels device.Tensor) {
	p, x, l := device.Elements[T](probs), device.Elements[T](logits), device.Elements[int64](labels)
	m, n := logits.Shape[0], logits.Shape[1]
	rows := max(chunk/max(n, 1), 1)
	s := k.total(m, rows, n, func(lo, hi int) (s float64) {
		for ; lo < hi; lo++ {
			row := x[lo*n : (lo+1)*n]
			s += softmax(p[lo*n:(lo+1)*n], row) - float64(row[l[lo]])
		}
		return s
	})
	device.Elements[T](loss)[0] = T(s / float64(m))
}

func crossEntropyGrad[T float](k *kernelSet, dst device.Tensor, acc device.Accum, g, probs, labels device.Tensor) {
	d, p, l := device.Elements[T](dst), device.Elements[T](probs), device.Elements[int64](labels)
	m, n := dst.Shape[0], dst.Shape[1]
	scale := T(float64(device.Elements[T](g)[0]) / float64(m))
	tiled(k, d, acc, func(t []T, lo int) {
		for i, v := range p[lo : lo+len(t)] {
			t[i] = scale * v
		}
		// This iteration handles the part of row r that lies in the tile.
		for r := lo / n; r < m && r*n < lo+len(t); r++ {
			if i := r*n + int(l[r]) - lo; i >= 0 && i < len(t) {
				t[i] = scale * (p[lo+i] - 1)
			}
		}
	})
}
