package device

import (
	"fmt"
	"unsafe"
)

// Align is the alignment, in bytes, of all device memory, and of every gradient within a bucket.
// Vectorized kernels and DMA need it.
const Align = 256

// AlignUp rounds n up to a multiple of [Align].
func AlignUp(n int) int { return (n + Align - 1) &^ (Align - 1) }

// Buffer is a range of memory. It is a value that owns nothing. The zero Buffer is empty.
type Buffer struct {
	host  []byte  // the memory if the host can address it, else nil
	addr  uintptr // the address on the device if host is nil
	size  int
	owner any // keeps memory outside Go's heap mapped
}

// HostBuffer returns a Buffer over memory that the host can address. If mem lies outside Go's
// heap, a clean-up of owner unmaps it: every slice of the Buffer keeps owner reachable, so mem is
// never unmapped while a slice is in use. owner may be nil.
func HostBuffer(mem []byte, owner any) Buffer {
	return Buffer{host: mem, size: len(mem), owner: owner}
}

// DeviceBuffer returns a Buffer over memory that only its device can address. [HostBuffer] describes owner.
func DeviceBuffer(addr uintptr, size int, owner any) Buffer {
	return Buffer{addr: addr, size: size, owner: owner}
}

// Len returns the size in bytes.
func (b Buffer) Len() int { return b.size }

// Host returns the memory, or nil if the host cannot address it. The result is valid while b is
// reachable.
func (b Buffer) Host() []byte { return b.host }

// Owner returns the owner passed to [HostBuffer] or [DeviceBuffer].
func (b Buffer) Owner() any { return b.owner }

// Addr returns the address of the first byte, or 0 for an empty Buffer.
func (b Buffer) Addr() uintptr {
	if b.host != nil {
		return uintptr(unsafe.Pointer(unsafe.SliceData(b.host)))
	}
	return b.addr
}

// Slice returns the n bytes from off. It panics if they are not within b.
func (b Buffer) Slice(off, n int) Buffer {
	if off < 0 || n < 0 || off+n > b.size {
		panic(fmt.Errorf("device: bytes %d to %d are out of range for a buffer of %d bytes", off, off+n, b.size))
	}
	s := Buffer{size: n, owner: b.owner}
	if b.host != nil {
		s.host = b.host[off : off+n : off+n]
	} else {
		s.addr = b.addr + uintptr(off)
	}
	return s
}

// Tensor is a dense, row-major array in a device's memory. It is a value that owns nothing. The
// zero Tensor represents an absent operand.
type Tensor struct {
	Buf   Buffer
	DType DType
	Shape Shape
}

// NewTensor returns an array over the first bytes of buf. It panics if buf is too small.
func NewTensor(buf Buffer, dt DType, shape ...int) Tensor {
	s := Shape(shape)
	return Tensor{Buf: buf.Slice(0, s.Len()*dt.Size()), DType: dt, Shape: s}
}

// Len returns the number of elements, 0 for the zero Tensor.
func (t Tensor) Len() int {
	if t.DType == Invalid {
		return 0
	}
	return t.Shape.Len()
}

// Bytes returns the size in bytes.
func (t Tensor) Bytes() int { return t.Len() * t.DType.Size() }

// IsZero reports whether t is the zero Tensor, which represents an absent operand.
func (t Tensor) IsZero() bool { return t.DType == Invalid }

// Reshape returns the same memory with another shape. It panics with a [*ShapeError] if the number
// of elements differs.
func (t Tensor) Reshape(shape ...int) Tensor {
	s := Shape(shape)
	if s.Len() != t.Len() {
		panic(&ShapeError{Op: "Reshape", A: t.Shape, B: s})
	}
	return Tensor{Buf: t.Buf, DType: t.DType, Shape: s}
}

// Flat returns t with a single axis.
func (t Tensor) Flat() Tensor { return t.Reshape(t.Len()) }

// Range returns the elements [lo, hi) of t, with a single axis.
func (t Tensor) Range(lo, hi int) Tensor {
	sz := t.DType.Size()
	return Tensor{Buf: t.Buf.Slice(lo*sz, (hi-lo)*sz), DType: t.DType, Shape: Shape{hi - lo}}
}

func (t Tensor) String() string { return fmt.Sprintf("%v%v", t.DType, t.Shape) }

// Elements returns t's memory as a slice, or nil for the zero Tensor. It panics if the host cannot
// address the memory, or if T does not match t's element type.
func Elements[T Element](t Tensor) []T {
	if t.IsZero() {
		return nil
	}
	if !holds[T](t.DType) {
		panic(fmt.Errorf("device: elements of type %v cannot be read as %T", t.DType, *new(T)))
	}
	if t.Len() == 0 {
		return nil
	}
	if t.Buf.host == nil {
		panic(fmt.Errorf("device: the host cannot address the memory of %v: copy it to the host first", t))
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(t.Buf.host))), t.Len())
}

// HostTensor returns an array over a Go slice, without a copy. dt may be Invalid, which selects
// the type of T; for uint16 it must be Float16 or BFloat16. Without a shape, the array has one
// axis.
func HostTensor[T Element](data []T, dt DType, shape ...int) Tensor {
	if dt == Invalid {
		for d := Float32; d <= Uint8; d++ {
			if d != Float16 && d != BFloat16 && holds[T](d) {
				dt = d
			}
		}
	}
	if !holds[T](dt) {
		panic(fmt.Errorf("device: a slice of %T cannot hold elements of type %v", *new(T), dt))
	}
	if len(shape) == 0 {
		shape = []int{len(data)}
	}
	n := len(data) * dt.Size()
	mem := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(data))), n)
	return NewTensor(HostBuffer(mem, nil), dt, shape...)
}
