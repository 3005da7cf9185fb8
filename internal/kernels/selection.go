package kernels

import "github.com/goddp/goddp/device"

// Comparison is a relation of two numbers.
type Comparison uint8

// The comparisons. Those of a NaN do not hold, but for NotEqual.
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

// Extreme is which end of some numbers is looked for.
type Extreme uint8

// The extremes.
const (
	Largest Extreme = iota
	Smallest
)

func (e Extreme) String() string { return [...]string{"Largest", "Smallest"}[e] }

// Selection compares elements, and selects some of them.
type Selection interface {
	// Compare computes dst, of Uint8: 1 where x c y holds, else 0. x and y are of one type,
	// integers or one that the device computes in, and broadcast to dst's shape.
	Compare(s device.Stream, c Comparison, dst, x, y device.Tensor) error
	// MaskedCopy sets those elements of dst, of any type, to x's where mask, of Uint8, is
	// not 0. mask and x, of dst's type, are broadcast to dst's shape.
	MaskedCopy(s device.Stream, dst, mask, x device.Tensor) error
	// FindExtreme finds the largest, or the smallest, elements of src [outer n inner]
	// along the middle axis, and where they are, of Int64: values and indices [outer
	// inner], of which either may not be there. NaN is more extreme than any number. Of
	// several equal elements it is the first. n is at least 1 where there are results.
	FindExtreme(s device.Stream, e Extreme, values, indices, src device.Tensor) error
}
