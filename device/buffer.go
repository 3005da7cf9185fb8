package device

import (
	"fmt"
	"unsafe"
)

// Align is the alignment, in bytes, of everything a device allocates and of
// every gradient view within a bucket: what vectorised kernels and DMA want.
const Align = 256

// Buffer is a range of memory: a value that owns nothing. The zero Buffer is
// empty.
type Buffer struct {
	host  []byte  // the memory, where the host can address it; else nil
	addr  uintptr // the address on the device, where the host cannot
	size  int
	owner any // keeps a mapping that Go's collector does not know alive
}

// HostBuffer is memory that the host can address. owner, if not nil, is kept
// reachable as long as any slice of the buffer is: memory outside Go's heap
// is unmapped by a clean-up of its owner, never under a reader.
func HostBuffer(mem []byte, owner any) Buffer {
	return Buffer{host: mem, size: len(mem), owner: owner}
}

// DeviceBuffer is memory that only its device can address.
func DeviceBuffer(addr uintptr, size int, owner any) Buffer {
	return Buffer{addr: addr, size: size, owner: owner}
}

// Len is the size in bytes.
func (b Buffer) Len() int { return b.size }

// Host is the memory itself, nil where the host cannot address it. It is
// valid while b is reachable.
func (b Buffer) Host() []byte { return b.host }

// Owner is what the buffer's maker gave to keep its memory alive.
func (b Buffer) Owner() any { return b.owner }

// Addr is the address of the first byte, 0 for an empty buffer.
func (b Buffer) Addr() uintptr {
	if b.host != nil {
		return uintptr(unsafe.Pointer(unsafe.SliceData(b.host)))
	}
	return b.addr
}

// Slice is the n bytes from off. It panics when they are not within b.
func (b Buffer) Slice(off, n int) Buffer {
	if off < 0 || n < 0 || off+n > b.size {
		panic(fmt.Errorf("device: bytes %d to %d of a buffer of %d", off, off+n, b.size))
	}
	s := Buffer{size: n, owner: b.owner}
	if b.host != nil {
		s.host = b.host[off : off+n : off+n]
	} else {
		s.addr = b.addr + uintptr(off)
	}
	return s
}

// Tensor is a dense, row-major array in a device's memory: what kernels and
// collectives take. It is a value that owns nothing. The zero Tensor stands
// for an operand that is not there.
type Tensor struct {
	Buf   Buffer
	DType DType
	Shape Shape
}

// NewTensor is an array over the first bytes of buf. It panics when buf is
// too small.
func NewTensor(buf Buffer, dt DType, shape ...int) Tensor {
	s := Shape(shape)
	return Tensor{Buf: buf.Slice(0, s.Len()*dt.Size()), DType: dt, Shape: s}
}

// Len is the number of elements; 0 for the zero Tensor.
func (t Tensor) Len() int {
	if t.DType == Invalid {
		return 0
	}
	return t.Shape.Len()
}

// Bytes is the size in bytes.
func (t Tensor) Bytes() int { return t.Len() * t.DType.Size() }

// IsZero tells whether t is the zero Tensor: an operand that is not there.
func (t Tensor) IsZero() bool { return t.DType == Invalid }

// Reshape is the same memory with another shape of as many elements.
func (t Tensor) Reshape(shape ...int) Tensor {
	s := Shape(shape)
	if s.Len() != t.Len() {
		panic(&ShapeError{Op: "Reshape", A: t.Shape, B: s})
	}
	return Tensor{Buf: t.Buf, DType: t.DType, Shape: s}
}

// Flat is t as one axis.
func (t Tensor) Flat() Tensor { return t.Reshape(t.Len()) }

// Range is elements lo to hi of t, as one axis.
func (t Tensor) Range(lo, hi int) Tensor {
	sz := t.DType.Size()
	return Tensor{Buf: t.Buf.Slice(lo*sz, (hi-lo)*sz), DType: t.DType, Shape: Shape{hi - lo}}
}

func (t Tensor) String() string { return fmt.Sprintf("%v%v", t.DType, t.Shape) }

// Elements reads a tensor in host memory as a slice of T, without a copy; nil
// for an operand that is not there. It panics when T is not the tensor's type
// or the host cannot address it.
func Elements[T Element](t Tensor) []T {
	if t.IsZero() {
		return nil
	}
	if !holds[T](t.DType) {
		panic(fmt.Errorf("device: elements of %v read as %T", t.DType, *new(T)))
	}
	if t.Len() == 0 {
		return nil
	}
	if t.Buf.host == nil {
		panic(fmt.Errorf("device: the host cannot address this %v", t))
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(t.Buf.host))), t.Len())
}

// HostTensor is an array over a Go slice, without a copy. dt is needed for
// uint16, which may be either half type; else Invalid stands for T's own.
func HostTensor[T Element](data []T, dt DType, shape ...int) Tensor {
	if dt == Invalid {
		for d := Float32; d <= Uint8; d++ {
			if d != Float16 && d != BFloat16 && holds[T](d) {
				dt = d
			}
		}
	}
	if !holds[T](dt) {
		panic(fmt.Errorf("device: %T taken as %v", *new(T), dt))
	}
	if len(shape) == 0 {
		shape = []int{len(data)}
	}
	n := len(data) * dt.Size()
	mem := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(data))), n)
	return NewTensor(HostBuffer(mem, nil), dt, shape...)
}
