package checkpoint

import (
	"encoding/binary"

	"github.com/goddp/goddp/device"
)

// lanes are the elements of a floating-point type in a word of 64 bits.
type lanes struct {
	ones     uint64 // has the lowest bit of each element
	bits     int    // of an element
	mantissa int    // the number of bits below an element's exponent
}

var lanesOf = map[device.DType]lanes{
	device.Float64:  {1, 64, 52},
	device.Float32:  {0x00000001_00000001, 32, 23},
	device.Float16:  {0x0001_0001_0001_0001, 16, 10},
	device.BFloat16: {0x0001_0001_0001_0001, 16, 7},
}

// isFinite reports whether p's elements are finite. A buffer may have an Inf, as a mask has, but no NaN.
func (p *piece) isFinite() bool {
	l, isFloat := lanesOf[p.dtype]
	if !isFloat {
		return true
	}
	// The exponent's bits are all set in an Inf or a NaN, and in a NaN one below them is set too. So the sum of
	// the element without its sign and carry reaches the sign's bit.
	sign, carry := l.ones<<(l.bits-1), l.ones<<l.mantissa
	if p.buffer {
		carry -= l.ones // now only a NaN does that
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
