package devicetest

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"unsafe"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// rig holds a device under test, and the type in which its kernels are checked.
type rig struct {
	ctx context.Context
	dev device.Device
	k   kernels.Kernels
	s   device.Stream
	dt  device.DType
	rnd *rand.Rand

	quick bool // of several operands that are alike, one is enough
	skew  int  // the distance, in elements, of operands from an aligned address
	bufs  []device.Buffer
}

// failure is the panic value of fail; the case's check returns it as an error.
type failure struct{ error }

func (r *rig) fail(format string, args ...any) { panic(failure{fmt.Errorf(format, args...)}) }

func (r *rig) ok(what string, err error) {
	if err != nil {
		r.fail("%s: %w", what, err)
	}
}

// clean waits for the device and frees what the check has allocated.
func (r *rig) clean() {
	r.ok("Sync", r.s.Sync(r.ctx))
	for _, b := range r.bufs {
		r.dev.Free(b)
	}
	r.bufs = nil
}

// array is the reference for a tensor, in float64.
type array struct {
	shape device.Shape
	v     []float64
}

func newArray(shape ...int) array {
	return array{shape, make([]float64, device.Shape(shape).Len())}
}

// random returns an array of numbers in [lo, hi) that the type under test represents exactly.
func (r *rig) random(lo, hi float64, shape ...int) array {
	a := newArray(shape...)
	for i := range a.v {
		a.v[i] = round(r.dt, lo+(hi-lo)*r.rnd.Float64())
	}
	return a
}

// Before and behind an operand lie at least guard bytes with the value mark, which kernels must not
// change.
const (
	guard = device.Align
	mark  = 0xA5
)

// operand is a tensor between guards.
type operand struct {
	device.Tensor
	all device.Buffer
}

// place allocates a tensor of any type between guards.
func (r *rig) place(dt device.DType, shape device.Shape, content []byte) operand {
	n := shape.Len() * dt.Size()
	buf, err := r.dev.Alloc(n + 2*guard + device.Align)
	r.ok("Alloc", err)
	r.bufs = append(r.bufs, buf)
	at := guard + r.skew*dt.Size()
	o := operand{device.NewTensor(buf.Slice(at, n), dt, shape...), buf}
	r.fill(o, content)
	return o
}

// fill writes an operand's content and its guards.
func (r *rig) fill(o operand, content []byte) {
	at := guard + r.skew*o.DType.Size()
	image := bytes.Repeat([]byte{mark}, o.all.Len())
	copy(image[at:], content)
	r.ok("CopyIn", r.dev.CopyIn(r.s, o.all, image))
}

// read returns an operand's content. It fails if a guard has changed.
func (r *rig) read(label string, o operand) []byte {
	image := make([]byte, o.all.Len())
	r.ok(label, r.dev.CopyOut(r.ctx, r.s, image, o.all))
	at := guard + r.skew*o.DType.Size()
	end := at + o.Bytes()
	if i := slices.IndexFunc(image[:at], isOverwritten); i >= 0 {
		r.fail("%s: wrote byte %d, before its result at %d to %d", label, i, at, end)
	}
	if i := slices.IndexFunc(image[end:], isOverwritten); i >= 0 {
		r.fail("%s: wrote byte %d, behind its result at %d to %d", label, end+i, at, end)
	}
	return image[at:end]
}

func isOverwritten(b byte) bool { return b != mark }

// put places an array as a tensor of the type under test.
func (r *rig) put(a array) operand { return r.place(r.dt, a.shape, encode(r.dt, a.v)) }

// bytesOf returns the memory of a slice.
func bytesOf[T device.Element](v []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), len(v)*int(unsafe.Sizeof(*new(T))))
}

// value is the expected result of a kernel, with the scale of its error.
type value struct {
	array
	scale []float64 // for each element; nil stands for the element's magnitude
	c     float64   // the maximum error, as a multiple of eps·scale
}

func (w value) scaleAt(i int) float64 {
	if w.scale == nil {
		return math.Abs(w.v[i])
	}
	return w.scale[i]
}

// same fails unless o is equal to want within the tolerance.
func (r *rig) same(label string, o operand, want value) {
	got := decode(o.DType, r.read(label, o))
	eps, least := want.c*epsilon(o.DType), smallest(o.DType)
	for i, w := range want.v {
		bound := eps*want.scaleAt(i) + least
		g := got[i]
		if g == w || g != g && w != w || !math.IsInf(w, 0) && math.Abs(g-w) <= bound {
			continue
		}
		r.fail("%s %v: element %d is %v, want %v (off by %g, bound %g)", label, o.Tensor, i, g, w, math.Abs(g-w), bound)
	}
}

// result checks a kernel that overwrites its result. Before the kernel runs, the result is NaN. A
// second run must give the same bits.
func (r *rig) result(label string, want value, kernel func(dst device.Tensor) error) {
	r.from(label, nan(want.shape), want, kernel)
}

// from checks a kernel as result does, with a result that starts as before.
func (r *rig) from(label string, before array, want value, kernel func(dst device.Tensor) error) {
	dst := r.put(before)
	r.ok(label, kernel(dst.Tensor))
	r.same(label, dst, want)
	first := r.read(label, dst)
	r.fill(dst, encode(r.dt, before.v))
	r.ok(label, kernel(dst.Tensor))
	if again := r.read(label, dst); !bytes.Equal(first, again) {
		r.fail("%s %v: run twice, the bits differ", label, dst.Tensor)
	}
}

// accums are the values of Accum that each kernel with such a parameter is checked with. No type
// represents 1/3 exactly.
var accums = []device.Accum{
	{Alpha: 1}, {Alpha: 1. / 3, Beta: 1}, {Alpha: 0, Beta: 1}, {Alpha: 1. / 3, Beta: 1. / 3},
	{Alpha: 1, Beta: 1}, {Alpha: 1. / 3}, {Alpha: 0, Beta: 0}, {Alpha: -1, Beta: 1}, {Alpha: -2, Beta: 0.5},
}

// accumulates checks a kernel that takes an Accum with all accums. With Beta 0, dst starts as NaN.
func (r *rig) accumulates(label string, want value, kernel func(dst device.Tensor, acc device.Accum) error) {
	accums := accums
	if r.quick {
		accums = []device.Accum{{Alpha: 1}, {Alpha: 1. / 3, Beta: 1}, {Alpha: 1. / 3, Beta: 1. / 3}}
	}
	for _, acc := range accums {
		before := nan(want.shape)
		if acc.Beta != 0 {
			before = r.random(-2, 2, want.shape...)
		}
		w := value{newArray(want.shape...), make([]float64, len(want.v)), want.c}
		for i, v := range want.v {
			w.v[i] = acc.Alpha * v
			w.scale[i] = math.Abs(acc.Alpha) * want.scaleAt(i)
			if acc.Beta != 0 {
				w.v[i] += acc.Beta * before.v[i]
				w.scale[i] += math.Abs(acc.Beta * before.v[i])
			}
		}
		r.from(fmt.Sprintf("%s %+v", label, acc), before, w, func(dst device.Tensor) error { return kernel(dst, acc) })
	}
}

func nan(shape device.Shape) array {
	a := newArray(shape...)
	for i := range a.v {
		a.v[i] = math.NaN()
	}
	return a
}

// each runs f for each item, with operands at aligned addresses and one element away from them.
// After each run it frees what f has allocated.
func each[T any](r *rig, items []T, f func(T)) {
	for _, skew := range []int{0, 1} {
		r.skew = skew
		for _, it := range items {
			f(it)
			r.clean()
		}
	}
	r.skew = 0
}
