package kernels

import "github.com/goddp/goddp/device"

// NameLayer adds the names of a layer and of its parameter to a panic value of package
// device, unless the value has them already: the innermost layer knows best.
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
		set(&e.Layer, layer)
	}
}
