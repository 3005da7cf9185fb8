package nn

import (
	"fmt"

	"github.com/goddp/goddp/device"
)

// Cast makes m's parameters ones of another floating-point type, but for those of
// the modules to keep as they are, such as one whose sums need Float32. Buffers
// stay what they are. A parameter without a place yet begins as its numbers
// would have been, rounded; one that has a place gets another variable, with its
// numbers rounded, so that Cast comes before ddp.New and the optimizer. The error
// is that of the device; the parameters before the one it names are cast.
//
// Layers of this package convert what comes in to the type that they compute in,
// and losses take 16 bits to Float32: see [Linear]. Cast panics with a
// [*device.DTypeError] when dt is not floating-point.
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
