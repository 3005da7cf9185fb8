package cpu

import (
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// operand32 reads and writes an operand as float32. The operand is of float32 or of a 16-bit type,
// or absent.
type operand32 struct {
	dt   device.DType
	bits []uint16
	full []float32
}

func newOperand32(t device.Tensor) operand32 {
	if t.DType == device.Float32 {
		return operand32{dt: t.DType, full: device.Elements[float32](t)}
	}
	return operand32{dt: t.DType, bits: device.Elements[uint16](t)}
}

// read returns the elements lo to hi: a slice of a float32 operand, or a conversion into buf. It
// returns nil if the operand is absent.
func (h operand32) read(buf []float32, lo, hi int) []float32 {
	switch h.dt {
	case device.Float32:
		return h.full[lo:hi]
	case device.Float16:
		convert(buf, h.bits[lo:hi], kernels.FromF16)
	case device.BFloat16:
		convert(buf, h.bits[lo:hi], kernels.FromBF16)
	default:
		return nil
	}
	return buf[:hi-lo]
}

// write rounds x and stores it to the elements from lo on. It does nothing if x is a slice of the
// operand.
func (h operand32) write(x []float32, lo int) {
	switch h.dt {
	case device.Float16:
		convert(h.bits[lo:], x, kernels.F16)
	case device.BFloat16:
		convert(h.bits[lo:], x, kernels.BF16)
	}
}
