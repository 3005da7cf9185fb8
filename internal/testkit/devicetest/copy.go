package devicetest

import (
	"bytes"
	"fmt"
	"math"
	"slices"

	"github.com/goddp/goddp/device"
)

var everyType = []device.DType{
	device.Float32, device.Float64, device.Float16, device.BFloat16, device.Int32, device.Int64, device.Uint8,
}

func checkFill(r *rig) {
	for _, dt := range everyType {
		each(r, shapes, func(shape device.Shape) {
			o := r.place(dt, shape, make([]byte, shape.Len()*dt.Size()))
			for _, v := range []float64{0, 1, 3, 100} {
				label := fmt.Sprintf("Fill with %v", v)
				r.ok(label, r.k.Fill(r.s, o.Tensor, v))
				want := array{shape, slices.Repeat([]float64{v}, shape.Len())}
				r.same(label, o, value{array: want})
			}
			if dt.IsFloat() {
				third := array{shape, slices.Repeat([]float64{1. / 3}, shape.Len())}
				r.ok("Fill", r.k.Fill(r.s, o.Tensor, 1./3))
				if got := r.read("Fill", o); !bytes.Equal(got, encode(dt, third.v)) {
					r.fail("Fill %v with 1/3: not the nearest number", o.Tensor)
				}
			}
		})
	}
}

// floats returns numbers that expose inexact conversions: ties, numbers just next to a tie (which
// rounding by way of a third type gets wrong), subnormal numbers, and the bounds of every range.
func floats() []float64 {
	v := []float64{
		0, 1, -1, 0.5, 1. / 3, -2. / 3, math.Pi, 100.75, 255, 65504, 65519.99, 65520, 1e5, 3e38, 3.4e38, 1e39, 1e300,
		math.SmallestNonzeroFloat32, 1e-40, 6e-8, 2.98e-8, 2.9802322387695312e-8, 2.99e-8, 5.9e-5, 1e-300,
		math.Inf(1), math.Inf(-1), math.NaN(),
	}
	for _, fraction := range []int{7, 10, 23} { // the fraction bits of bfloat16, float16 and float32
		half := math.Ldexp(1, -fraction-1)
		for _, odd := range []float64{0, 2 * half} { // a tie below an even number, and one below an odd number
			for _, beside := range []float64{0, 0x1p-40, -0x1p-40, 0x1p-26, -0x1p-26} {
				v = append(v, 1+odd+half+beside, -1000*(1+odd+half+beside))
			}
		}
	}
	return v
}

// integers returns numbers that expose inexact conversions from integers.
func integers() []int64 {
	return []int64{
		0, 1, 2, 100, 127, 255, 2049, 2051, 65504, 1<<24 + 1, 1<<24 + 3, 1<<31 - 1, -1, -100, -1 << 31,
		1<<53 + 1, 1<<53 + 3, 1<<62 + 1<<54, 1<<62 + 1<<54 + 1, 1<<62 + 3<<54 - 1, 1<<62 + 1<<38, 1<<62 + 1<<38 + 1,
		-(1<<62 + 1<<54 + 1), math.MaxInt64, math.MinInt64,
	}
}

// inRange reports whether an integer type can represent v, truncated.
func inRange(dt device.DType, v float64) bool {
	switch dt {
	case device.Int32:
		return v > -1<<31-1 && v < 1<<31
	case device.Int64:
		return v >= -1<<63 && v < 1<<63
	case device.Uint8:
		return v > -1 && v < 256
	}
	return true
}

func checkCopy(r *rig) {
	for _, from := range everyType {
		for _, to := range everyType {
			each(r, []int{1, 3, 1000}, func(n int) {
				if from.IsFloat() {
					r.copyFloats(to, from, n)
				} else {
					r.copyInts(to, from, n)
				}
			})
		}
	}
	r.copyFloats(device.BFloat16, device.Float32, large)
	r.copyInts(device.Float32, device.Int64, large)
	empty := r.place(device.Float32, device.Shape{0, 3}, nil)
	r.ok("Copy of nothing", r.k.Copy(r.s, r.place(device.Float64, device.Shape{3, 0}, nil).Tensor, empty.Tensor))
	// Source and destination may have different shapes with the same number of elements.
	x := r.random(-2, 2, 6, 35)
	o := r.put(nan(device.Shape{70, 3}))
	r.ok("Copy", r.k.Copy(r.s, o.Tensor, r.put(x).Tensor))
	r.same("Copy to another shape", o, value{array: x})
}

func (r *rig) copyFloats(to, from device.DType, n int) {
	var v []float64
	for _, x := range floats() {
		if x = round(from, x); inRange(to, x) {
			v = append(v, x)
		}
	}
	v = slices.Repeat(v, n/len(v)+1)[:n]
	want := slices.Clone(v)
	for i, x := range v {
		if to.IsFloat() {
			want[i] = round(to, x)
		} else {
			want[i] = math.Trunc(x)
		}
	}
	r.convert(to, r.place(from, device.Shape{n}, encode(from, v)), want)
}

func (r *rig) copyInts(to, from device.DType, n int) {
	var v []int64
	for _, x := range integers() {
		if fits(from, x) && (to.IsFloat() || fits(to, x)) {
			v = append(v, x)
		}
	}
	v = slices.Repeat(v, n/len(v)+1)[:n]
	src := r.place(from, device.Shape{n}, integerBytes(from, v))
	if !to.IsFloat() {
		dst := r.place(to, device.Shape{n}, make([]byte, n*to.Size()))
		r.ok("Copy", r.k.Copy(r.s, dst.Tensor, src.Tensor))
		if got := r.read("Copy", dst); !bytes.Equal(got, integerBytes(to, v)) {
			r.fail("Copy of %v to %v: an integer changed", src.Tensor, dst.Tensor)
		}
		return
	}
	want := make([]float64, n)
	for i, x := range v {
		want[i] = roundInt(to, x)
	}
	r.convert(to, src, want)
}

// convert checks that a copy to another type gives exactly want.
func (r *rig) convert(to device.DType, src operand, want []float64) {
	dst := r.place(to, src.Shape, bytes.Repeat([]byte{0x11}, src.Len()*to.Size()))
	label := fmt.Sprintf("Copy of %v to %v", src.Tensor, dst.Tensor)
	r.ok(label, r.k.Copy(r.s, dst.Tensor, src.Tensor))
	got := decode(to, r.read(label, dst))
	from := decode(src.DType, r.read(label, src))
	for i, w := range want {
		if got[i] != w && (got[i] == got[i] || w == w) {
			r.fail("%s: %v became %v, want %v", label, from[i], got[i], w)
		}
	}
}

func fits(dt device.DType, v int64) bool {
	switch dt {
	case device.Int32:
		return v == int64(int32(v))
	case device.Uint8:
		return v == int64(uint8(v))
	}
	return true
}

func integerBytes(dt device.DType, v []int64) []byte {
	switch dt {
	case device.Int32:
		out := make([]int32, len(v))
		for i, x := range v {
			out[i] = int32(x)
		}
		return bytesOf(out)
	case device.Uint8:
		out := make([]uint8, len(v))
		for i, x := range v {
			out[i] = uint8(x)
		}
		return out
	}
	return bytesOf(v)
}

// roundInt returns the number of a floating-point type nearest to v. It rounds v's upper bits as an
// integer, without an intermediate type.
func roundInt(dt device.DType, v int64) float64 {
	neg, u := v < 0, uint64(v)
	if neg {
		u = -u
	}
	drop := 0
	for u>>drop >= 1<<(formats[dt].fraction+1) {
		drop++
	}
	kept, rest := u>>drop, u&(1<<drop-1)
	if tie := uint64(1) << drop >> 1; rest > tie || rest == tie && drop > 0 && kept&1 == 1 {
		kept++
	}
	f := round(dt, math.Ldexp(float64(kept), drop)) // exact, unless it exceeds the largest number
	if neg {
		return -f
	}
	return f
}

// checkHostCopies checks CopyIn, after which the caller may reuse the source at once, and CopyOut.
func checkHostCopies(r *rig) {
	for _, n := range []int{0, 1, 4, 255, 256, 100003, 1 << 20} {
		buf, err := r.dev.Alloc(n)
		r.ok("Alloc", err)
		src, got := make([]byte, n), make([]byte, n)
		for i := range src {
			src[i] = byte(r.rnd.Uint32())
		}
		want := slices.Clone(src)
		r.ok("CopyIn", r.dev.CopyIn(r.s, buf, src))
		clear(src)
		r.ok("CopyOut", r.dev.CopyOut(r.ctx, r.s, got, buf))
		if !bytes.Equal(got, want) {
			r.fail("%d bytes copied in and out differ", n)
		}
		r.dev.Free(buf)
	}
}

// checkCopies checks Copy in all its directions. Each copy runs after the work that writes its
// source and before the work that reads its destination. The test also checks that sizes that
// differ panic.
func checkCopies(r *rig) {
	for _, n := range []int{0, 1, 4, 255, 256, 100003, 1 << 20} {
		var bufs [4]device.Buffer // on the host, the device, the device, the host
		for i, alloc := range []func(int) (device.Buffer, error){r.dev.AllocHost, r.dev.Alloc, r.dev.Alloc, r.dev.AllocHost} {
			b, err := alloc(n)
			r.ok("allocating", err)
			if b.Len() != n || b.Addr()%device.Align != 0 {
				r.fail("allocating %d bytes: got %d at %#x", n, b.Len(), b.Addr())
			}
			bufs[i] = b
		}
		for round := range byte(3) { // the copies of a round run after those of the round before, in the same memory
			first, last := bufs[0].Host(), bufs[3].Host()
			if len(first) != n || len(last) != n {
				r.fail("the host can address %d and %d bytes of AllocHost's %d", len(first), len(last), n)
			}
			for i := range first {
				first[i] = byte(i)*7 + round
			}
			for i := range 3 {
				r.ok("Copy", r.dev.Copy(r.s, bufs[i+1], bufs[i]))
			}
			r.ok("Sync", r.s.Mark().Sync(r.ctx))
			if !bytes.Equal(first, last) {
				r.fail("round %d: %d bytes copied to the device, on it and back differ", round, n)
			}
		}
		if n > 1 {
			r.panics("Copy to more", func() { r.dev.Copy(r.s, bufs[1], bufs[0].Slice(0, n-1)) })
			r.panics("Copy to less", func() { r.dev.Copy(r.s, bufs[3].Slice(0, n-1), bufs[1]) })
		}
		for _, b := range bufs {
			r.dev.Free(b)
		}
	}
}
