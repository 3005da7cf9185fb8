package collective

import (
	"fmt"
	"strings"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
)

// named is a value with nccl-tests' name and another name.
type named[T any] struct {
	name, other string
	value       T
}

var types = []named[device.DType]{
	{"uint8", "uint8", device.Uint8}, {"int32", "int32", device.Int32}, {"int64", "int64", device.Int64},
	{"half", "float16", device.Float16}, {"bfloat16", "bfloat16", device.BFloat16},
	{"float", "float32", device.Float32}, {"double", "float64", device.Float64},
}

var ops = []named[comm.ReduceOp]{
	{"sum", "sum", comm.Sum}, {"prod", "product", comm.Product}, {"min", "min", comm.Min}, {"max", "max", comm.Max}, {"avg", "avg", comm.Avg},
}

// FindType returns the element type with a name: nccl-tests' ("float", "half") or this module's
// ("float32").
func FindType(name string) (device.DType, error) { return find(types, "element type", name) }

// FindOp returns the reduction with a name: nccl-tests' ("prod") or this module's ("product").
func FindOp(name string) (comm.ReduceOp, error) { return find(ops, "reduction", name) }

func find[T any](list []named[T], what, name string) (T, error) {
	var names []string
	for _, s := range list {
		if name == s.name || name == s.other {
			return s.value, nil
		}
		names = append(names, s.name)
	}
	return *new(T), fmt.Errorf("unknown %s %q, want %s", what, name, strings.Join(names, ", "))
}

// nameOf returns nccl-tests' name of a value in the list.
func nameOf[T comparable](list []named[T], value T) string {
	for _, s := range list {
		if s.value == value {
			return s.name
		}
	}
	return fmt.Sprint(value)
}
