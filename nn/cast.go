package nn

import (
	"cmp"
	"fmt"

	"github.com/goddp/goddp/autograd"
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
func Cast(m Model, dt device.DType, keep ...Model) error { return cast(m, dt, false, keep) }

// CastWithMasters is [Cast] for a model that is trained with the option MasterWeights of package optim. It keeps
// the Float32 values of the parameters that it rounds to 16 bits and that training changes; these must be placed.
// The optimizer's Float32 copies then begin with those values, as the parameters of PyTorch's autocast do. If a copy
// began with the rounded value, updates would have to add up to half a rounding step before the parameter changed.
//
// ddp.New makes the values equal on all ranks. Code that writes a parameter discards its values. The kept values are
// the variables from before the cast; the optimizer's first step frees them. If the optimizer's state is saved before
// that step and loaded again, its copies begin with rounded values. CastWithMasters panics with an [*UnplacedError]
// if a parameter is not placed.
func CastWithMasters(m Model, dt device.DType, keep ...Model) error { return cast(m, dt, true, keep) }

func cast(m Model, dt device.DType, masters bool, keep []Model) error {
	if !dt.IsFloat() {
		panic(&device.DTypeError{Op: "Cast", Got: dt, Want: device.Float32})
	}
	kept := map[*value]bool{}
	for _, k := range keep {
		for _, p := range k.Parameters() {
			kept[p.value] = true
		}
	}
	owned := map[*autograd.Variable]bool{} // several parameters may have one variable
	for _, p := range m.Parameters() {
		if kept[p.value] {
			continue
		}
		old := p.v
		if masters && old == nil {
			panic(&UnplacedError{cmp.Or(p.path, p.name)})
		}
		if err := p.cast(dt); err != nil {
			return fmt.Errorf("nn: casting parameter %s to %v: %w", p.name, dt, err)
		}
		if masters && dt.Size() == 2 && old.DType() == device.Float32 && !p.Frozen() && !owned[old] {
			owned[old] = true
			p.SetMaster(old)
		}
	}
	return nil
}
