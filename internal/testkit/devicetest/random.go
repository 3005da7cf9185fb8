package devicetest

import (
	"fmt"
	"math"
	"math/bits"

	"github.com/goddp/goddp/device"
)

// philox is Philox4x32-10 (Salmon et al., SC 2011), written after its description as ten S-P
// rounds. A test of this package compares it with the authors' known answers.
func philox(counter [4]uint32, k0, k1 uint32) [4]uint32 {
	for round := range uint32(10) {
		hiA, loA := bits.Mul32(counter[0], 0xD2511F53)
		hiB, loB := bits.Mul32(counter[2], 0xCD9E8D57)
		counter[0] = hiB ^ counter[1] ^ (k0 + round*0x9E3779B9)
		counter[2] = hiA ^ counter[3] ^ (k1 + round*0xBB67AE85)
		counter[1], counter[3] = loB, loA
	}
	return counter
}

// words returns the four words of a block. stream is the counter's third word: 0 for Uniform and 1
// for Normal.
func words(seed, block uint64, stream uint32) [4]uint32 {
	return philox([4]uint32{uint32(block), uint32(block >> 32), stream, 0}, uint32(seed), uint32(seed>>32))
}

// wide returns 53 bits of two words as a number in [0, 1).
func wide(hi, lo uint32) float64 { return float64((uint64(hi)<<32+uint64(lo))>>11) / (1 << 53) }

// uniform returns element e of a sequence in [lo, hi).
func uniform(dt device.DType, lo, hi float64, seed, e uint64) float64 {
	if dt == device.Float64 {
		w := words(seed, e/2, 0)
		u := wide(w[e%2*2], w[e%2*2+1])
		return min(lo+float64((hi-lo)*u), math.Nextafter(hi, lo))
	}
	u := float64(words(seed, e/4, 0)[e%4]>>8) / (1 << 24)
	v := float32(lo + float64((hi-lo)*u))
	if float64(v) >= hi {
		v = math.Nextafter32(float32(hi), float32(lo))
	}
	return float64(v)
}

// normal returns element e of a sequence. scale is its distance from the mean if the cosine or sine
// were 1, and so the scale of its error.
func normal(dt device.DType, mean, std float64, seed, e uint64) (v, scale float64) {
	var a, b float64
	if dt == device.Float64 {
		w := words(seed, e/2, 1)
		a, b = wide(w[0], w[1])+1./(1<<53), wide(w[2], w[3])
	} else {
		w, j := words(seed, e/4, 1), e%4/2*2
		a, b = (float64(w[j])+1)/(1<<32), float64(w[j+1])/(1<<32)
	}
	radius := math.Sqrt(-2 * math.Log(a))
	z := radius * math.Cos(2*math.Pi*b)
	if e%2 == 1 {
		z = radius * math.Sin(2*math.Pi*b)
	}
	return mean + std*z, math.Abs(mean) + std*max(radius, 1)
}

// draw describes n numbers of a sequence.
type draw struct {
	n            int
	seed, offset uint64
}

// draws begin and end anywhere in a block, and some have counters of more than 32 bits.
var draws = []draw{
	{0, 1, 0}, {1, 0, 0}, {4, 1, 0}, {7, 1, 1}, {1000, 42, 3}, {257, 1<<63 + 5, 2}, {33, 7, 1<<34 - 5}, {large, 9, 1},
}

func checkUniform(r *rig) {
	each(r, draws, func(d draw) {
		for _, b := range [][2]float64{{0, 1}, {-0.25, 0.5}, {1, 1 + 1./(1<<20)}} {
			want := value{array: newArray(d.n)}
			for i := range want.v {
				want.v[i] = uniform(r.dt, b[0], b[1], d.seed, d.offset+uint64(i))
			}
			label := fmt.Sprintf("Uniform %v, seed %d, offset %d", b, d.seed, d.offset)
			r.result(label, want, func(dst device.Tensor) error {
				return r.k.Uniform(r.s, dst, b[0], b[1], d.seed, d.offset)
			})
		}
	})
}

func checkNormal(r *rig) {
	each(r, draws, func(d draw) {
		want := value{newArray(d.n), make([]float64, d.n), 16}
		for i := range want.v {
			want.v[i], want.scale[i] = normal(r.dt, 0.5, 2, d.seed, d.offset+uint64(i))
		}
		label := fmt.Sprintf("Normal, seed %d, offset %d", d.seed, d.offset)
		r.result(label, want, func(dst device.Tensor) error {
			return r.k.Normal(r.s, dst, 0.5, 2, d.seed, d.offset)
		})
	})
}
