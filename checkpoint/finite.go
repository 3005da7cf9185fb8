package checkpoint

import "github.com/goddp/goddp/device"

// isFinite reports whether p's elements are finite. A buffer may have an Inf, as a mask has, but no NaN.
func (p *piece) isFinite() bool {
	switch p.dtype {
	case device.Float32:
		return areFinite(device.Elements[float32](p.t), p.buffer)
	case device.Float64:
		return areFinite(device.Elements[float64](p.t), p.buffer)
	case device.Float16:
		return areFinite16(device.Elements[uint16](p.t), 0x7c00, p.buffer)
	case device.BFloat16:
		return areFinite16(device.Elements[uint16](p.t), 0x7f80, p.buffer)
	}
	return true
}

func areFinite[T float32 | float64](elements []T, allowInf bool) bool {
	for _, x := range elements {
		if x-x != 0 && !(allowInf && x == x) {
			return false
		}
	}
	return true
}

// areFinite16 is areFinite for 16-bit types. exponent has the bits of the type's exponent, which are all set in an
// Inf or a NaN.
func areFinite16(elements []uint16, exponent uint16, allowInf bool) bool {
	const sign = 0x8000
	for _, b := range elements {
		if b&exponent == exponent && !(allowInf && b&^sign == exponent) {
			return false
		}
	}
	return true
}
