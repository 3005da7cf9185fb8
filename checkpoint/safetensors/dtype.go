package safetensors

import "github.com/goddp/goddp/device"

// DType is the type of a tensor's elements, under its name in the header.
type DType string

// widths holds the size of an element, in bits, of each type of the format.
var widths = map[DType]int{
	"BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
	"U16": 16, "I16": 16, "F16": 16, "BF16": 16,
	"U32": 32, "I32": 32, "F32": 32,
	"U64": 64, "I64": 64, "F64": 64, "C64": 64,
	"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}

// names holds the format's names of the types that devices have.
var names = map[device.DType]DType{
	device.Uint8: "U8", device.Int32: "I32", device.Int64: "I64",
	device.Float16: "F16", device.BFloat16: "BF16", device.Float32: "F32", device.Float64: "F64",
}

// Bits returns the size of an element in bits, or 0 if the format has no such type. An element may be smaller
// than a byte.
func (d DType) Bits() int { return widths[d] }

// Of returns the format's name of a device's type.
func Of(dt device.DType) DType { return names[dt] }

// Device returns the device's type that corresponds to d, or device.Invalid if there is none.
func (d DType) Device() device.DType {
	for dt, name := range names {
		if name == d {
			return dt
		}
	}
	return device.Invalid
}
