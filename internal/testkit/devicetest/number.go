package devicetest

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/goddp/goddp/device"
)

// format describes a binary floating-point type by the number of its exponent bits and fraction
// bits.
type format struct{ exponent, fraction int }

var formats = [...]format{
	device.Float32: {8, 23}, device.Float64: {11, 52}, device.Float16: {5, 10}, device.BFloat16: {8, 7},
}

// bias returns the number that is added to an exponent to encode it.
func (f format) bias() int { return 1<<(f.exponent-1) - 1 }

// epsilon returns half the distance from 1 to the next number, and 0 for integers.
func epsilon(dt device.DType) float64 {
	if !dt.IsFloat() {
		return 0
	}
	return math.Ldexp(1, -formats[dt].fraction-1)
}

// smallest returns the smallest normal number, below which a device may flush to zero; 0 for
// integers.
func smallest(dt device.DType) float64 {
	if !dt.IsFloat() {
		return 0
	}
	return math.Ldexp(1, 1-formats[dt].bias())
}

// round returns the number of a floating-point type nearest to v, ties to even.
func round(dt device.DType, v float64) float64 {
	switch {
	case dt == device.Float32:
		return float64(float32(v))
	case dt == device.Float64 || v == 0 || math.IsInf(v, 0) || v != v:
		return v
	}
	f := formats[dt]
	_, e := math.Frexp(v) // v is within [2^(e-1), 2^e)
	ulp := max(e-1, 1-f.bias()) - f.fraction
	v = math.Ldexp(math.RoundToEven(math.Ldexp(v, -ulp)), ulp)
	if math.Abs(v) >= math.Ldexp(1, f.bias()+1) {
		return math.Inf(int(math.Copysign(1, v)))
	}
	return v
}

// encode returns the bytes of numbers rounded to dt.
func encode(dt device.DType, v []float64) []byte {
	if dt == device.Float32 {
		narrow := make([]float32, len(v))
		for i, x := range v {
			narrow[i] = float32(x)
		}
		return bytesOf(narrow)
	}
	out := make([]byte, 0, len(v)*dt.Size())
	for _, x := range v {
		switch dt {
		case device.Int32:
			out = binary.NativeEndian.AppendUint32(out, uint32(int32(x)))
		case device.Int64:
			out = binary.NativeEndian.AppendUint64(out, uint64(int64(x)))
		case device.Uint8:
			out = append(out, uint8(x))
		case device.Float64:
			out = binary.NativeEndian.AppendUint64(out, math.Float64bits(x))
		default:
			out = binary.NativeEndian.AppendUint16(out, pack(formats[dt], round(dt, x)))
		}
	}
	return out
}

// decode returns the numbers that bytes encode.
func decode(dt device.DType, mem []byte) []float64 {
	out := make([]float64, len(mem)/dt.Size())
	for i := range out {
		b := mem[i*dt.Size():]
		switch dt {
		case device.Int32:
			out[i] = float64(int32(binary.NativeEndian.Uint32(b)))
		case device.Int64:
			out[i] = float64(int64(binary.NativeEndian.Uint64(b)))
		case device.Uint8:
			out[i] = float64(b[0])
		case device.Float64:
			out[i] = math.Float64frombits(binary.NativeEndian.Uint64(b))
		case device.Float32:
			out[i] = float64(math.Float32frombits(binary.NativeEndian.Uint32(b)))
		case device.Float16, device.BFloat16:
			out[i] = unpack(formats[dt], binary.NativeEndian.Uint16(b))
		default:
			panic(fmt.Errorf("devicetest: cannot read %v", dt))
		}
	}
	return out
}

// pack returns the bits of v, which must be a number of the 16-bit format f.
func pack(f format, v float64) uint16 {
	sign := uint16(0)
	if math.Signbit(v) {
		sign, v = 1<<15, -v
	}
	top := uint16(1<<f.exponent-1) << f.fraction
	switch {
	case v != v:
		return sign | top | 1<<(f.fraction-1)
	case math.IsInf(v, 0):
		return sign | top
	case v < math.Ldexp(1, 1-f.bias()): // subnormal
		return sign | uint16(math.Ldexp(v, f.bias()-1+f.fraction))
	}
	fr, e := math.Frexp(v)
	return sign | uint16(e-1+f.bias())<<f.fraction | uint16(math.Ldexp(2*fr-1, f.fraction))
}

// unpack returns the number that bits of a 16-bit format encode.
func unpack(f format, b uint16) float64 {
	fraction, e := float64(b&(1<<f.fraction-1)), int(b>>f.fraction)&(1<<f.exponent-1)
	var v float64
	switch {
	case e == 1<<f.exponent-1 && fraction != 0:
		return math.NaN()
	case e == 1<<f.exponent-1:
		v = math.Inf(1)
	case e == 0:
		v = math.Ldexp(fraction, 1-f.bias()-f.fraction)
	default:
		v = math.Ldexp(1+math.Ldexp(fraction, -f.fraction), e-f.bias())
	}
	if b>>15 == 1 {
		return -v
	}
	return v
}
