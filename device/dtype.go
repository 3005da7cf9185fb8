package device

import "fmt"

// DType is the type of a tensor's elements.
type DType uint8

// The element types. Ranks exchange these values, so they must not change.
const (
	Invalid DType = iota
	Float32
	Float64
	Float16  // IEEE 754 binary16
	BFloat16 // the upper half of a binary32
	Int32
	Int64
	Uint8
)

var dtypes = [...]struct {
	name string
	size int
}{
	Invalid: {"invalid", 0}, Float32: {"float32", 4}, Float64: {"float64", 8}, Float16: {"float16", 2},
	BFloat16: {"bfloat16", 2}, Int32: {"int32", 4}, Int64: {"int64", 8}, Uint8: {"uint8", 1},
}

// Size returns the size of one element in bytes, or 0 for Invalid.
func (d DType) Size() int {
	if int(d) >= len(dtypes) {
		return 0
	}
	return dtypes[d].size
}

// Valid reports whether d is one of the named types other than Invalid.
func (d DType) Valid() bool { return d.Size() > 0 }

// IsFloat reports whether d is a floating-point type.
func (d DType) IsFloat() bool { return d >= Float32 && d <= BFloat16 }

func (d DType) String() string {
	if int(d) >= len(dtypes) {
		return fmt.Sprintf("dtype(%d)", uint8(d))
	}
	return dtypes[d].name
}

// Element is a Go type that a tensor's memory can be read as. Elements of Float16 and BFloat16 are
// read as their bits, uint16.
type Element interface {
	float32 | float64 | int32 | int64 | uint8 | uint16
}

// holds reports whether T is the Go type of elements of type d.
func holds[T Element](d DType) bool {
	switch any(*new(T)).(type) {
	case float32:
		return d == Float32
	case float64:
		return d == Float64
	case int32:
		return d == Int32
	case int64:
		return d == Int64
	case uint8:
		return d == Uint8
	default:
		return d == Float16 || d == BFloat16
	}
}
