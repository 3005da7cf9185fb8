//go:build cgo && linux

package cuda

import (
	"unsafe"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// writeRowsArgs has the layout of the structure WriteRows in kernels/decoding.cu.
type writeRowsArgs struct {
	dst, src, first uint64
	s, t, n, width  uint64
	wide            int32
}

func (k *kernelSet) WriteRows(st device.Stream, dst, src, first device.Tensor) error {
	operands.WriteRows(dst, src, first)
	if src.Len() == 0 {
		return nil
	}
	n := dst.Shape[2]
	a := writeRowsArgs{
		dst: k.addr(dst), src: k.addr(src), first: k.addr(first), s: uint64(dst.Shape[1]), t: uint64(src.Shape[1]), n: uint64(n), width: uint64(n),
	}
	if per := packBytes / dst.DType.Size(); packed(a.dst, a.src) && n%per == 0 {
		a.wide, a.width = 1, uint64(n/per)
	}
	g := grid{src.Shape[0] * src.Shape[1], ceil(int(a.width), warp), 1, warp, 1}
	if int(a.width) >= threads {
		g.y, g.threadsX = ceil(int(a.width), threads), threads
	}
	return k.launch(k.d.stream(st), k.writeRows[dst.DType], g, unsafe.Pointer(&a), unsafe.Sizeof(a))
}

// attendLastArgs has the layout of the structure AttendLast in kernels/decoding.cu.
type attendLastArgs struct {
	o, q, k, v, keys, values, last uint64
	parts, sums, arrived           uint64
	s, window                      uint64
	heads, keyHeads, d, splits     uint32
	group, chunks                  uint32
	scale                          float64
}

// The constants have the same values in kernels/decoding.cu.
const (
	splitPositions = 512
	decodeThreads  = 512
	decodeGroup    = 4
)

func (k *kernelSet) AttendLast(st device.Stream, o device.Tensor, l kernels.Last) error {
	operands.AttendLast(o, l)
	if o.Len() == 0 {
		return nil
	}
	s := k.d.stream(st)
	rows, heads, d, keys := l.Q.Shape[0], l.Q.Shape[1], l.Q.Shape[2], l.Keys.Shape
	group, splits := heads/keys[2], ceil(keys[1], splitPositions)
	chunks := ceil(group, decodeGroup)
	a := attendLastArgs{
		o: k.addr(o), q: k.addr(l.Q), k: k.addr(l.K), v: k.addr(l.V), keys: k.addr(l.Keys), values: k.addr(l.Values), last: k.addr(l.Last), arrived: k.addr(l.Arrived),
		s: uint64(keys[1]), window: uint64(l.Window), heads: uint32(heads), keyHeads: uint32(keys[2]), d: uint32(d), splits: uint32(splits),
		group: uint32(group), chunks: uint32(chunks), scale: l.Scale,
	}
	wide := device.Float32
	if o.DType == device.Float64 {
		wide = device.Float64
	}
	parts := device.Tensor{DType: wide, Shape: device.Shape{rows, heads, splits, d}}
	sums := device.Tensor{DType: wide, Shape: device.Shape{rows, heads, splits, 2}}
	scratch, err := k.scratch(&parts, &sums)
	if err != nil {
		return err
	}
	defer k.freeScratch(s, scratch)
	a.parts, a.sums = k.addr(parts), k.addr(sums)
	return k.launchEarly(s, k.attendLast[o.DType], grid{keys[2] * chunks, rows, splits, decodeThreads, 1}, unsafe.Pointer(&a), unsafe.Sizeof(a), nil, k.spans(o, l.Keys, l.Values, parts, sums, l.Arrived))
}
