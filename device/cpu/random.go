package cpu

import (
	"math"
	"math/bits"

	"github.com/goddp/goddp/device"
)

// Package kernels defines the random numbers.

// The counter's third word gives each distribution a separate sequence.
const (
	uniformStream = 0
	normalStream  = 1
	dropoutStream = 2
)

func (k *kernelSet) Uniform(_ device.Stream, dst device.Tensor, lo, hi float64, seed, offset uint64) error {
	operands.Float("Uniform", dst)
	width := hi - lo
	if dst.DType == device.Float32 {
		top := max(below32(hi), float32(lo))
		draw(k, device.Elements[float32](dst), offset, 4, func(e uint64) [4]float32 {
			w := philox(seed, e/4, uniformStream)
			var out [4]float32
			for i := range out {
				u := float64(w[i]>>8) * 0x1p-24
				out[i] = min(float32(lo+float64(width*u)), top)
			}
			return out
		})
		return nil
	}
	top := max(math.Nextafter(hi, math.Inf(-1)), lo)
	draw(k, device.Elements[float64](dst), offset, 2, func(e uint64) [4]float64 {
		w := philox(seed, e/2, uniformStream)
		return [4]float64{
			min(lo+float64(width*unit53(w[0], w[1])), top),
			min(lo+float64(width*unit53(w[2], w[3])), top),
		}
	})
	return nil
}

func (k *kernelSet) Normal(_ device.Stream, dst device.Tensor, mean, std float64, seed, offset uint64) error {
	operands.Float("Normal", dst)
	if dst.DType == device.Float32 {
		draw(k, device.Elements[float32](dst), offset, 4, func(e uint64) [4]float32 {
			w := philox(seed, e/4, normalStream)
			a, b := boxMuller(float64(uint64(w[0])+1)*0x1p-32, float64(w[1])*0x1p-32)
			c, d := boxMuller(float64(uint64(w[2])+1)*0x1p-32, float64(w[3])*0x1p-32)
			return [4]float32{
				float32(mean + float64(std*a)), float32(mean + float64(std*b)),
				float32(mean + float64(std*c)), float32(mean + float64(std*d)),
			}
		})
		return nil
	}
	draw(k, device.Elements[float64](dst), offset, 2, func(e uint64) [4]float64 {
		w := philox(seed, e/2, normalStream)
		a, b := boxMuller(unit53(w[0], w[1])+0x1p-53, unit53(w[2], w[3]))
		return [4]float64{mean + float64(std*a), mean + float64(std*b)}
	})
	return nil
}

// draw fills dst with the elements of a sequence, from the element offset on. The sequence consists of blocks
// of `per` elements. The function block returns the block that contains element e.
func draw[T float](k *kernelSet, dst []T, offset, per uint64, block func(e uint64) [4]T) {
	k.each(len(dst), 8, func(lo, hi int) {
		for lo < hi {
			e := offset + uint64(lo)
			b := block(e)
			lo += copy(dst[lo:hi], b[e%per:per])
		}
	})
}

// unit53 returns a number from [0, 1) made of 53 random bits.
func unit53(hi, lo uint32) float64 {
	return float64((uint64(hi)<<32|uint64(lo))>>11) * 0x1p-53
}

// below32 returns the largest float32 below v.
func below32(v float64) float32 {
	f := float32(v)
	if float64(f) >= v {
		f = math.Nextafter32(f, float32(math.Inf(-1)))
	}
	return f
}

// boxMuller returns two independent normal numbers for u in (0, 1] and v in [0, 1).
func boxMuller(u, v float64) (float64, float64) {
	r := math.Sqrt(-2 * math.Log(u))
	sin, cos := math.Sincos(2 * math.Pi * v)
	return r * cos, r * sin
}

// philox is the Philox4x32-10 generator of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy
// as 1, 2, 3" (SC 2011): ten rounds of two 32-bit products on a counter, with the seed as the key. A block
// depends only on its counter, so ranks and threads can share a sequence.
func philox(seed, block uint64, stream uint32) [4]uint32 {
	return philox4x32([4]uint32{uint32(block), uint32(block >> 32), stream, 0}, [2]uint32{uint32(seed), uint32(seed >> 32)})
}

func philox4x32(c [4]uint32, key [2]uint32) [4]uint32 {
	const (
		m0, m1 = 0xD2511F53, 0xCD9E8D57 // the multipliers
		w0, w1 = 0x9E3779B9, 0xBB67AE85 // the key schedule: golden ratio, sqrt(3)-1
	)
	c0, c1, c2, c3, k0, k1 := c[0], c[1], c[2], c[3], key[0], key[1] // variables stay in registers, and arrays do not
	for range 10 {
		h0, l0 := bits.Mul32(m0, c0)
		h1, l1 := bits.Mul32(m1, c2)
		c0, c1, c2, c3 = h1^c1^k0, l1, h0^c3^k1, l0
		k0 += w0
		k1 += w1
	}
	return [4]uint32{c0, c1, c2, c3}
}
