package checkpoint

import (
	"encoding/binary"

	"github.com/goddp/goddp/device"
)

// lanes describes how a word of 64 bits holds several elements of a floating-point type.
type lanes struct {
	ones     uint64 // the lowest bit of each element is set
	bits     int    // the size of an element
	mantissa int    // the number of bits below an element's exponent
}

var lanesOf = map[device.DType]lanes{
	device.Float64:  {1, 64, 52},
	device.Float32:  {0x00000001_00000001, 32, 23},
	device.Float16:  {0x0001_0001_0001_0001, 16, 10},
	device.BFloat16: {0x0001_0001_0001_0001, 16, 7},
}

// isFinite reports whether p has no NaN and no Inf. In a buffer Inf is allowed, because masks contain it.
func (p *piece) isFinite() bool {
	l, isFloat := lanesOf[p.dtype]
	if !isFloat {
		return true
	}
	// In an Inf or a NaN all bits of the exponent are set. In a NaN a bit of the mantissa is set too. So adding
	// carry to the element without its sign sets the sign's bit.
	sign, carry := l.ones<<(l.bits-1), l.ones<<l.mantissa
	if p.buffer {
		carry -= l.ones // now only a NaN sets the sign's bit
	}
	data := p.t.Buf.Host()
	for ; len(data) >= 8; data = data[8:] {
		if (binary.LittleEndian.Uint64(data)&^sign+carry)&sign != 0 {
			return false
		}
	}
	var rest [8]byte
	copy(rest[:], data)
	return (binary.LittleEndian.Uint64(rest[:])&^sign+carry)&sign == 0
}
