package devicetest

import (
	"fmt"
	"math"
	"slices"

	"github.com/goddp/goddp/device"
)

// lengths has lengths of arrays that are whole words and packs, and others.
var lengths = []int{0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 31, 32, 33, 257, 1000, large}

func checkNonFinite(r *rig) {
	for _, dt := range []device.DType{device.Float32, device.Float64, device.Float16, device.BFloat16} {
		f := formats[dt]
		top := math.Ldexp(2-math.Ldexp(1, -f.fraction), f.bias()) // top: the largest number
		finite := []float64{top, -top, 0, math.Copysign(0, -1), 1, -1, math.Ldexp(1, 1-f.bias()-f.fraction)}
		each(r, lengths, func(n int) {
			v := slices.Repeat(finite, n/len(finite)+1)[:n]
			label := fmt.Sprintf("NonFinite of %d %v", n, dt)
			x := r.place(dt, device.Shape{n}, encode(dt, v))
			r.flags(label+", all finite", x, 0)
			for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
				for _, at := range []int{0, n / 3, n / 2, n - 2, n - 1} {
					if at < 0 || at >= n {
						continue
					}
					was := v[at]
					v[at] = bad
					r.fill(x, encode(dt, v))
					r.flags(fmt.Sprintf("%s, element %d is %v", label, at, bad), x, 1)
					v[at] = was
				}
			}
		})
		// Only the lowest fraction bit makes this number a NaN instead of an infinity.
		mem := encode(dt, []float64{math.Inf(-1), 1, 1, 1})
		mem[0] |= 1
		r.flags(fmt.Sprintf("NonFinite of a signalling NaN in %v", dt), r.place(dt, device.Shape{4}, mem), 1)
		r.clean()
	}
}

// flags checks that NonFinite sets the second of three flags to want if it was cleared, and leaves
// it set if it was set.
func (r *rig) flags(label string, x operand, want byte) {
	for _, before := range []byte{0, 1} {
		all := r.place(device.Uint8, device.Shape{3}, []byte{0, before, 0})
		r.ok(label, r.k.NonFinite(r.s, all.Range(1, 2), x.Tensor))
		if got := r.read(label, all); !slices.Equal(got, []byte{0, want | before, 0}) {
			r.fail("%s: the flags are %v, want the second to be %d and the others 0", label, got, want|before)
		}
	}
}

func checkHash(r *rig) {
	for _, dt := range everyType {
		each(r, lengths, func(n int) {
			mem := make([]byte, n*dt.Size())
			for i := range mem {
				mem[i] = byte(r.rnd.Uint32())
			}
			label := fmt.Sprintf("Hash of %d %v", n, dt)
			x := r.place(dt, device.Shape{n}, mem)
			r.hashes(label, x, mem)
			if len(mem) < 16 {
				return
			}
			// The hash depends on every bit and on the order.
			for _, at := range []int{0, len(mem) / 2, len(mem) - 1} {
				mem[at] ^= 0x10
				r.fill(x, mem)
				r.hashes(fmt.Sprintf("%s, byte %d changed", label, at), x, mem)
			}
			slices.Reverse(mem[:16])
			r.fill(x, mem)
			r.hashes(label+", words reordered", x, mem)
		})
	}
	// The hash of zeros depends only on their number.
	for n := range 20 {
		r.hashes(fmt.Sprintf("Hash of %d zeros", n), r.place(device.Uint8, device.Shape{n}, make([]byte, n)), make([]byte, n))
	}
}

// hashes checks that Hash adds the hash of mem, the content of x, to the second of three numbers.
func (r *rig) hashes(label string, x operand, mem []byte) {
	const before = math.MaxInt64 - 5
	all := r.place(device.Int64, device.Shape{3}, bytesOf([]int64{1, before, 2}))
	r.ok(label, r.k.Hash(r.s, all.Range(1, 2), x.Tensor))
	sum := int64(hash(mem))
	if got, want := r.read(label, all), bytesOf([]int64{1, before + sum, 2}); !slices.Equal(got, want) {
		r.fail("%s: the numbers are % x, want % x", label, got, want)
	}
}

// hash computes the hash byte by byte, as package device defines it.
func hash(mem []byte) uint64 {
	sum := uint64(len(mem))
	for i := 0; i*8 < len(mem); i++ {
		var seed uint64
		for j := min(8*i+8, len(mem)) - 1; j >= 8*i; j-- {
			seed = seed<<8 + uint64(mem[j])
		}
		sum += splitMix(seed, i)
	}
	return sum
}

// splitMix returns output i, counted from 0, of SplitMix64 with a seed. The generator mixes a state
// that grows by a constant. A test of this package compares it with known outputs.
func splitMix(seed uint64, i int) uint64 {
	state := seed + (uint64(i)+1)*0x9E3779B97F4A7C15
	state ^= state >> 30
	state *= 0xBF58476D1CE4E5B9
	state ^= state >> 27
	state *= 0x94D049BB133111EB
	return state ^ state>>31
}
