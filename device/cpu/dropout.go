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
	tiled(k, device.Elements[T](dst), acc, func(t []T, lo int) {
		var words [4]uint32
		for i, v := range xs[lo : lo+len(t)] {
			e := offset + uint64(lo+i)
			if i == 0 || e%4 == 0 {
				words = philox(seed, e/4, dropoutStream)
			}
			f := T(factor)
			if uint64(words[e%4]) < threshold {
				f = 0
			}
			t[i] = v * f
		}
	})
}
