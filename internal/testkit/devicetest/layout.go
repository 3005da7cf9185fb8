package devicetest

import (
	"fmt"
	"math"
	"slices"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// box describes a CopyStrided: a box within two tensors that have dst and src elements.
type box struct {
	name     string
	shape    device.Shape
	dst, src int
	to, from kernels.Layout
}

// permuted returns the box that copies a tensor of a shape to one with its axes in another order.
func permuted(shape device.Shape, order ...int) box {
	from, out := kernels.Dense(shape), make(device.Shape, len(shape))
	l := kernels.Layout{Strides: make([]int, len(shape))}
	for i, axis := range order {
		out[i], l.Strides[i] = shape[axis], from.Strides[axis]
	}
	return box{fmt.Sprintf("%v in the order %v", shape, order), out, out.Len(), shape.Len(), kernels.Dense(out), l}
}

// boxes returns transposes, small and large and of axes between others; parts of rows and of
// columns of either operand; steps; broadcasts; reversed rows; and empty boxes.
func boxes() []box {
	at := func(offset int, strides ...int) kernels.Layout {
		return kernels.Layout{Offset: offset, Strides: strides}
	}
	return []box{
		{"a number", device.Shape{}, 3, 4, at(2), at(1)},
		{"nothing", device.Shape{2, 0, 3}, 0, 0, at(0, 3, 3, 1), at(0, 0, 0, 0)},
		{"a row", device.Shape{257}, 300, 260, at(3, 1), at(1, 1)},
		{"every third", device.Shape{50}, 50, 150, at(0, 1), at(2, 3)},
		{"to every third", device.Shape{50}, 160, 60, at(2, 3), at(8, 1)},
		{"reversed", device.Shape{3, 70}, 210, 210, at(0, 70, 1), at(69, 70, -1)},
		{"a row for each", device.Shape{9, 40}, 360, 40, at(0, 40, 1), at(0, 0, 1)},
		{"a number for each row", device.Shape{9, 40}, 360, 9, at(0, 40, 1), at(0, 1, 0)},
		{"a part of columns", device.Shape{11, 24}, 11 * 24, 11 * 64, at(0, 24, 1), at(16, 64, 1)},
		{"to a part of columns", device.Shape{11, 24}, 11 * 64, 11 * 24, at(33, 64, 1), at(0, 24, 1)},
		{"a part of a transpose", device.Shape{40, 45}, 50 * 60, 45 * 64, at(5, 60, 1), at(7, 1, 64)},
		permuted(device.Shape{5}, 0), permuted(device.Shape{1, 7, 1}, 2, 1, 0),
		permuted(device.Shape{3, 5}, 1, 0), permuted(device.Shape{33, 65}, 1, 0), permuted(device.Shape{300, 200}, 1, 0),
		permuted(device.Shape{2, 37, 3, 16}, 0, 2, 1, 3), permuted(device.Shape{2, 37, 3, 7}, 0, 2, 1, 3),
		permuted(device.Shape{2, 3, 33, 40}, 0, 1, 3, 2), permuted(device.Shape{2, 3, 4, 5, 6}, 4, 3, 2, 1, 0),
		permuted(device.Shape{2, 3, 2, 2, 3, 2, 2, 2}, 7, 5, 3, 1, 6, 4, 2, 0),
	}
}

// places calls f with the positions of every element of the box in dst and in src.
func (b box) places(f func(x, y int)) {
	for i := range b.shape.Len() {
		x, y := b.to.Offset, b.from.Offset
		for axis := len(b.shape) - 1; axis >= 0; axis-- {
			step := i % b.shape[axis]
			x, y, i = x+step*b.to.Strides[axis], y+step*b.from.Strides[axis], i/b.shape[axis]
		}
		f(x, y)
	}
}

// checkCopyStrided checks that elements of every type are copied bit for bit.
func checkCopyStrided(r *rig) {
	for _, dt := range everyType {
		each(r, boxes(), func(b box) {
			image := func(n int) []byte {
				mem := make([]byte, n*dt.Size())
				for i := range mem {
					mem[i] = byte(r.rnd.Uint32())
				}
				return mem
			}
			label := fmt.Sprintf("CopyStrided of %s of %v", b.name, dt)
			before, content, size := image(b.dst), image(b.src), dt.Size()
			dst, src := r.place(dt, device.Shape{b.dst}, before), r.place(dt, device.Shape{b.src}, content)
			want := slices.Clone(before)
			b.places(func(x, y int) { copy(want[x*size:(x+1)*size], content[y*size:(y+1)*size]) })
			r.ok(label, r.k.CopyStrided(r.s, b.shape, dst.Tensor, b.to, device.Store, src.Tensor, b.from))
			if got := r.read(label, dst); !slices.Equal(got, want) {
				i := 0
				for got[i] == want[i] {
					i++
				}
				r.fail("%s: byte %d, of element %d, is %#x, want %#x", label, i, i/size, got[i], want[i])
			}
		})
	}
}

// checkAccumulateStrided checks every Accum, and that elements of dst outside of the box do not
// change.
func checkAccumulateStrided(r *rig) {
	each(r, boxes(), func(b box) {
		src := r.random(-2, 2, b.src)
		placed := r.put(src)
		for _, acc := range accums {
			before := r.random(-2, 2, b.dst)
			want := value{array: array{before.shape, slices.Clone(before.v)}, scale: make([]float64, b.dst), c: 8}
			b.places(func(x, y int) {
				want.v[x], want.scale[x] = acc.Alpha*src.v[y], math.Abs(acc.Alpha*src.v[y])
				if acc.Beta != 0 {
					want.v[x] += acc.Beta * before.v[x]
					want.scale[x] += math.Abs(acc.Beta * before.v[x])
				}
			})
			r.from(fmt.Sprintf("CopyStrided %+v of %s", acc, b.name), before, want, func(dst device.Tensor) error {
				return r.k.CopyStrided(r.s, b.shape, dst, b.to, acc, placed.Tensor, b.from)
			})
		}
	})
}

// nanStrided checks that NaN is copied, and that with Beta 0 a NaN in dst is overwritten.
func nanStrided(r *rig) {
	b := permuted(device.Shape{nanLen, 40}, 1, 0)
	src := withNaN(r.random(-2, 2, b.src))
	placed := r.put(src)
	for _, acc := range []device.Accum{device.Store, {Alpha: 2}} {
		want := newArray(b.dst)
		b.places(func(x, y int) { want.v[x] = acc.Alpha * src.v[y] })
		r.result(fmt.Sprintf("CopyStrided %+v of NaN", acc), value{array: want, c: 2}, func(dst device.Tensor) error {
			return r.k.CopyStrided(r.s, b.shape, dst, b.to, acc, placed.Tensor, b.from)
		})
	}
}
