package devicetest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// quantLengths has lengths that are whole blocks and packs, and others.
var quantLengths = []int{0, 1, 3, 4, 251, kernels.QuantBlock, kernels.QuantBlock + 1, 2 * kernels.QuantBlock, 1001, large}

// quantInputs returns numbers to quantise, n of each kind.
func (r *rig) quantInputs(n int) map[string][]float64 {
	kinds := map[string][]float64{"random": r.random(-3, 3, n).v}
	for name, v := range map[string][]float64{
		"zeros":      {0, math.Copysign(0, -1)},
		"ties":       {127, 0.5, -0.5, 1.5, 2.5, -2.5, 126.5},
		"tiny":       {0x1p-101, -0x1p-110, math.SmallestNonzeroFloat32},
		"just seen":  {0x1p-100, -0x1p-101, 0x1p-107, math.SmallestNonzeroFloat32},
		"huge":       {3e38, -3e38, 1e38, 1},
		"not finite": {1, math.NaN(), 2, math.Inf(1), -3, math.Inf(-1), 0},
		"no finite":  {math.NaN(), math.Inf(1)},
	} {
		kinds[name] = slices.Repeat(v, n/len(v)+1)[:n]
	}
	return kinds
}

func checkQuantize(r *rig) {
	each(r, quantLengths, func(n int) {
		for kind, v := range r.quantInputs(n) {
			label := fmt.Sprintf("Quantize of %d numbers, %s", n, kind)
			x := r.put(array{device.Shape{n}, v})
			want := quantized(v)
			r.inWords(func() {
				dst := r.place(device.Uint8, device.Shape{len(want)}, bytes.Repeat([]byte{0x11}, len(want)))
				r.ok(label, r.k.Quantize(r.s, dst.Tensor, x.Tensor))
				for at, got := range r.read(label, dst) {
					if got != want[at] {
						r.fail("%s: byte %d is %#02x, want %#02x", label, at, got, want[at])
					}
				}
			})
			r.clean()
		}
	})
}

func checkDequantize(r *rig) {
	each(r, quantLengths, func(n int) {
		for kind, v := range r.quantInputs(n) {
			label := fmt.Sprintf("Dequantize of %d numbers, %s", n, kind)
			mem := quantized(v)
			var x operand
			r.inWords(func() { x = r.place(device.Uint8, device.Shape{len(mem)}, mem) })
			want := value{newArray(n), make([]float64, n), 8}
			for i := range v {
				block := mem[i/kernels.QuantBlock*device.Align:]
				scale := decode(device.Float32, block[:4])[0]
				q := int8(block[4+i%kernels.QuantBlock])
				want.v[i] = scale * float64(q)
				if q == -128 {
					want.v[i] = math.NaN()
				}
				want.scale[i] = math.Abs(want.v[i])
				// A quotient of up to 127 is rounded to float32, so the number is off by at most
				// half a step and another 127·2^-24 of a step.
				if off := math.Abs(want.v[i] - v[i]); off > scale*(0.5+0x1p-17) && math.Abs(v[i]) >= 0x1p-100 {
					r.fail("%s: element %d, %v, was quantised to %v, with a scale of %v", label, i, v[i], want.v[i], scale)
				}
			}
			if kind == "random" {
				r.accumulates(label, want, func(dst device.Tensor, acc device.Accum) error { return r.k.Dequantize(r.s, dst, acc, x.Tensor) })
			} else {
				r.result(label, want, func(dst device.Tensor) error { return r.k.Dequantize(r.s, dst, device.Store, x.Tensor) })
			}
			r.clean()
		}
	})
}

// inWords runs f with operands that are whole words away from an aligned address.
func (r *rig) inWords(f func()) {
	skew := r.skew
	defer func() { r.skew = skew }()
	r.skew *= 4
	f()
}

// quantized computes the quantised blocks number by number, as package device defines them.
func quantized(v []float64) []byte {
	f := func(v float64) float64 { return round(device.Float32, v) }
	var out []byte
	for len(v) > 0 {
		block := v[:min(kernels.QuantBlock, len(v))]
		v = v[len(block):]
		most, scale, inverse := 0., 0., 0.
		for _, x := range block {
			if m := math.Abs(x); m > most && !math.IsInf(m, 1) {
				most = m
			}
		}
		if most >= 0x1p-100 {
			scale, inverse = f(most/127), f(127/most)
		}
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(float32(scale)))
		for _, x := range block {
			q := int8(-128)
			if !math.IsInf(x, 0) && x == x {
				q = int8(math.RoundToEven(f(x * inverse)))
			}
			out = append(out, byte(q))
		}
		out = append(out, make([]byte, kernels.QuantBlock-len(block))...)
	}
	return out
}
