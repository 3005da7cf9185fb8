package cpu

import (
	endian "encoding/binary"
	"sync/atomic"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
)

// The functions below read an array's memory in words of eight bytes. The last word is padded with zeros.
const wordBytes = 8

// words returns the number of words that hold n bytes.
func words(n int) int { return (n + wordBytes - 1) / wordBytes }

// littleEndian returns the first word of mem.
func littleEndian(mem []byte) uint64 { return endian.LittleEndian.Uint64(mem) }

// tail returns the last word of mem if it is incomplete.
func tail(mem []byte) (w uint64) {
	for i, b := range mem[len(mem)/wordBytes*wordBytes:] {
		w |= uint64(b) << (8 * i)
	}
	return w
}

// exponents holds, for each type, a word with the exponent bits of all its elements set. Only a NaN
// or an infinity has all exponent bits set.
var exponents = [...]uint64{
	device.Float32:  0x7F800000_7F800000,
	device.Float64:  0x7FF00000_00000000,
	device.Float16:  0x7C00_7C00_7C00_7C00,
	device.BFloat16: 0x7F80_7F80_7F80_7F80,
}

// signs holds, for each type, a word with the sign bits of all its elements set.
var signs = [...]uint64{
	device.Float32:  0x80000000_80000000,
	device.Float64:  0x80000000_00000000,
	device.Float16:  0x8000_8000_8000_8000,
	device.BFloat16: 0x8000_8000_8000_8000,
}

func (k *kernelSet) NonFinite(_ device.Stream, flag, x device.Tensor) error {
	operand.NonFinite(flag, x)
	mem, exponent, sign := x.Buf.Host()[:x.Bytes()], exponents[x.DType], signs[x.DType]
	var found atomic.Bool
	k.each(words(len(mem)), wordBytes/x.DType.Size(), func(lo, hi int) {
		if nonFinite(mem[lo*wordBytes:min(hi*wordBytes, len(mem))], exponent, sign) {
			found.Store(true)
		}
	})
	if found.Load() {
		device.Elements[uint8](flag)[0] = 1
	}
	return nil
}

// nonFinite reports whether an exponent in mem is all ones. Adding one to such an exponent carries into the
// sign bit, and no further, because the sign bits are masked out.
func nonFinite(mem []byte, exponent, sign uint64) bool {
	one := sign - exponent // the lowest bit of every exponent
	carried := tail(mem)&exponent + one
	for ; len(mem) >= 4*wordBytes; mem = mem[4*wordBytes:] {
		a, b := littleEndian(mem), littleEndian(mem[8:])
		c, d := littleEndian(mem[16:]), littleEndian(mem[24:])
		carried |= (a&exponent + one) | (b&exponent + one) | (c&exponent + one) | (d&exponent + one)
	}
	for ; len(mem) >= wordBytes; mem = mem[wordBytes:] {
		carried |= littleEndian(mem)&exponent + one
	}
	return carried&sign != 0
}

// The documentation of package kernels defines the hash.

func (k *kernelSet) Hash(_ device.Stream, dst, x device.Tensor) error {
	operand.Hash(dst, x)
	mem := x.Buf.Host()[:x.Bytes()]
	var sum atomic.Uint64
	k.each(words(len(mem)), 4, func(lo, hi int) { // a word costs about as much as four elements of a sum
		sum.Add(hash(mem[lo*wordBytes:min(hi*wordBytes, len(mem))], uint64(lo)))
	})
	device.Elements[int64](dst)[0] += int64(uint64(len(mem)) + sum.Load())
	return nil
}

// hash returns the sum of the hashes of the words in mem. The first word in mem is word i of the array.
func hash(mem []byte, i uint64) (sum uint64) {
	const golden = 0x9E3779B97F4A7C15
	at := i * golden
	rest := tail(mem)
	for ; len(mem) >= wordBytes; mem = mem[wordBytes:] {
		at += golden
		sum += mix(littleEndian(mem) + at)
	}
	if len(mem) > 0 {
		sum += mix(rest + at + golden)
	}
	return sum
}

// mix returns SplitMix64's output for a state.
func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}
