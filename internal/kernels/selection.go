package kernels

import "github.com/goddp/goddp/device"

// Comparison is a relation of two numbers.
type Comparison uint8

// The comparisons. With a NaN, only NotEqual holds.
const (
	Equal Comparison = iota
	NotEqual
	Less
	LessEqual
	Greater
	GreaterEqual
)

func (c Comparison) String() string {
	return [...]string{"Equal", "NotEqual", "Less", "LessEqual", "Greater", "GreaterEqual"}[c]
}

// Extreme selects the largest or the smallest elements.
type Extreme uint8

// The extremes.
const (
	Largest Extreme = iota
	Smallest
)

func (e Extreme) String() string { return [...]string{"Largest", "Smallest"}[e] }

// Selection contains the kernels that compare and select elements.
type Selection interface {
	// Compare computes dst, of Uint8: 1 where x c y holds, else 0. x and y have the same type,
	// integers or a type that the device computes in, and are broadcast to dst's shape.
	Compare(s device.Stream, c Comparison, dst, x, y device.Tensor) error
	// MaskedCopy copies x to dst, of any type, where mask, of Uint8, is not 0. mask and x, of
	// dst's type, are broadcast to dst's shape.
	MaskedCopy(s device.Stream, dst, mask, x device.Tensor) error
	// FindExtreme finds the extreme elements of src [outer n inner] along the middle axis. It writes
	// the elements to values [outer inner], and their indices, Int64, to indices [outer inner].
	// Either tensor may be absent. NaN is more extreme than any number. The first of equal elements
	// is selected. n is at least 1 if there are results.
	FindExtreme(s device.Stream, e Extreme, values, indices, src device.Tensor) error
}
