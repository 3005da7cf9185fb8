package kernels

import (
	"strings"

	"github.com/goddp/goddp/device"
)

// NameLayer adds the names of a layer and of its parameter to a panic value of package device, unless it already
// has them from a layer further inside.
func NameLayer(panicked any, layer, parameter string) {
	set := func(name *string, to string) {
		if *name == "" {
			*name = to
		}
	}
	switch e := panicked.(type) {
	case *device.ShapeError:
		set(&e.Layer, layer)
		set(&e.Parameter, parameter)
	case *device.DTypeError:
		set(&e.Layer, layer)
		set(&e.Parameter, parameter)
	case *device.IndexError:
		if !e.Label { // a label does not come from a parameter
			set(&e.Layer, layer)
		}
	}
}

// NameOperation changes a panic value of package device: it replaces an Op that names a kernel by op, the operation
// that has called the kernel. An Op with details, such as "Attention with a mask", stays.
func NameOperation(panicked any, op string) {
	switch e := panicked.(type) {
	case *device.DTypeError:
		if !strings.Contains(e.Op, " ") {
			e.Op = op
		}
	case *device.IndexError:
		e.Op = op
	}
}
