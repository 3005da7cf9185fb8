package cpu

import (
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
	"github.com/goddp/goddp/internal/kernels"
)

func (k *kernelSet) Dropout(_ device.Stream, dst device.Tensor, acc device.Accum, x device.Tensor, p float64, at kernels.Position) error {
	operands.Same("Dropout", dst, x)
	operand.Position("Dropout", at)
	offset := at.Offset
	for _, from := range device.Elements[int64](at.From) {
		offset += uint64(from)
	}
	pick(dst, dropout[float32], dropout[float64])(k, dst, acc, x, p, at.Seed, offset)
	return nil
}

func dropout[T float](k *kernelSet, dst device.Tensor, acc device.Accum, x device.Tensor, p float64, seed, offset uint64) {
	threshold, factor := kernels.DropoutThreshold(p)
	xs := device.Elements[T](x)
	factors := [2]T{T(factor), 0}
	tiled(k, device.Elements[T](dst), acc, func(t []T, lo int) {
		x := xs[lo : lo+len(t)]
		if vectorDropout(float32s(t), float32s(x), float32(factor), threshold, seed, offset+uint64(lo)) {
			return
		}
		for i := 0; i < len(t); {
			e := offset + uint64(lo+i)
			words := philox(seed, e/4, dropoutStream)
			for _, w := range words[e%4 : min(e%4+uint64(len(t)-i), 4)] {
				isDropped := 0 // an index and not a branch, which the processor could not predict
				if uint64(w) < threshold {
					isDropped = 1
				}
				t[i] = x[i] * factors[isDropped]
				i++
			}
		}
	})
}
