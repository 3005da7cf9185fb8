//go:build cgo && linux

package cuda

import (
	"math"
	"unsafe"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
	"github.com/goddp/goddp/internal/kernels"
)

// randomArgs has the layout of the structure Random in kernels/random.cu.
type randomArgs struct {
	dst, n       uint64
	seed, offset uint64
	a, b, top    float64
}

func (k *kernelSet) Uniform(s device.Stream, dst device.Tensor, lo, hi float64, seed, offset uint64) error {
	operands.Float("Uniform", dst)
	top := max(below(dst.DType, hi), nearest(dst.DType, lo))
	return k.draw(s, &k.uniform, dst, randomArgs{seed: seed, offset: offset, a: lo, b: hi - lo, top: top})
}

func (k *kernelSet) Normal(s device.Stream, dst device.Tensor, mean, std float64, seed, offset uint64) error {
	operands.Float("Normal", dst)
	return k.draw(s, &k.normal, dst, randomArgs{seed: seed, offset: offset, a: mean, b: std})
}

func (k *kernelSet) draw(s device.Stream, versions *perFloat, dst device.Tensor, a randomArgs) error {
	if dst.Len() == 0 {
		return nil
	}
	a.dst, a.n = k.addr(dst), uint64(dst.Len())
	return k.launch(k.d.stream(s), versions[dst.DType], k.flat(ceil(dst.Len(), 2)), unsafe.Pointer(&a), unsafe.Sizeof(a))
}

// dropoutArgs has the layout of the structure Dropout in kernels/random.cu.
type dropoutArgs struct {
	dst, x, n               uint64
	seed, offset, threshold uint64
	from                    uint64
	factor                  float64
	acc                     device.Accum
}

func (k *kernelSet) Dropout(s device.Stream, dst device.Tensor, acc device.Accum, x device.Tensor, p float64, at kernels.Position) error {
	operands.Same("Dropout", dst, x)
	operand.Position("Dropout", at)
	threshold, factor := kernels.DropoutThreshold(p)
	if dst.Len() == 0 {
		return nil
	}
	a := dropoutArgs{
		dst: k.addr(dst), x: k.addr(x), n: uint64(dst.Len()), seed: at.Seed, offset: at.Offset, from: k.optional(at.From),
		threshold: threshold, factor: factor, acc: acc,
	}
	return k.launch(k.d.stream(s), k.dropout[dst.DType], k.flat(ceil(dst.Len(), 4)), unsafe.Pointer(&a), unsafe.Sizeof(a))
}

// nearest returns v rounded to dt.
func nearest(dt device.DType, v float64) float64 {
	switch dt {
	case device.Float32:
		return float64(float32(v))
	case device.Float16:
		return float64(kernels.FromF16(kernels.F16(float32(v))))
	case device.BFloat16:
		return float64(kernels.FromBF16(kernels.BF16(float32(v))))
	}
	return v
}

// below returns the largest number of type dt that is less than v.
func below(dt device.DType, v float64) float64 {
	n := nearest(dt, v)
	if n < v {
		return n
	}
	switch dt {
	case device.Float32:
		return float64(math.Nextafter32(float32(n), float32(math.Inf(-1))))
	case device.Float16:
		return float64(kernels.FromF16(before(kernels.F16(float32(n)))))
	case device.BFloat16:
		return float64(kernels.FromBF16(before(kernels.BF16(float32(n)))))
	}
	return math.Nextafter(n, math.Inf(-1))
}

// before returns the bits of the next smaller number of a 16-bit type. Read as an integer, the bits of a positive
// number increase with the number, and the bits of a negative number decrease.
func before(bits uint16) uint16 {
	const sign = 1 << 15
	switch {
	case bits&^sign == 0:
		return sign | 1
	case bits&sign == 0:
		return bits - 1
	}
	return bits + 1
}
