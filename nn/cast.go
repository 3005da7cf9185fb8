package nn

import (
	"fmt"

	"github.com/goddp/goddp/device"
)

// Cast converts m's parameters to another floating-point type, except those of the modules in keep,
// such as a module whose sums need Float32. Buffers keep their type. A parameter that is not placed
// starts later with the values that it would have had, rounded. A placed parameter gets a new variable
// with its values rounded, so Cast must precede ddp.New and the optimizer. The error is the device's; it
// names a parameter, and the parameters before that one are converted.
//
// Layers of this package convert their input to the type that they compute in, and losses convert 16-bit
// values to Float32: see [Linear]. Cast panics with a [*device.DTypeError] if dt is not a
// floating-point type.
func Cast(m Model, dt device.DType, keep ...Model) error {
	if !dt.IsFloat() {
		panic(&device.DTypeError{Op: "Cast", Got: dt, Want: device.Float32})
	}
	kept := map[*value]bool{}
	for _, k := range keep {
		for _, p := range k.Parameters() {
			kept[p.value] = true
		}
	}
	for _, p := range m.Parameters() {
		if kept[p.value] {
			continue
		}
		if err := p.cast(dt); err != nil {
			return fmt.Errorf("nn: casting parameter %s to %v: %w", p.name, dt, err)
		}
	}
	return nil
}
