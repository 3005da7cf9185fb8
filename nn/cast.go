package nn

import (
	"cmp"
	"fmt"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
)

// CastOptions are the choices of [Cast].
type CastOptions struct {
	// Keep lists modules whose parameters keep their type, for example because their sums need Float32.
	Keep []Model
	// Masters lets optimizers with MasterWeights start their masters from the unrounded values, like the parameters
	// under PyTorch's autocast. If masters started from rounded values, a parameter would not change until the updates
	// add up to half a rounding step. Values of a parameter that is frozen when Cast or [Place] rounds it are not kept.
	//
	// ddp.New makes the kept values equal on all ranks. Writing a parameter discards its kept value. The kept values
	// become the optimizer's masters, without a copy. If the optimizer's state is saved before its first step and loaded
	// again, its masters start from rounded values.
	Masters bool
}

// Cast converts m's parameters to another floating-point type. Buffers keep their type. A parameter that is not placed
// yet is later initialized with the rounded values. A placed parameter gets a new variable with rounded values, so call
// Cast before ddp.New and before creating the optimizer. A device error names the parameter that failed; the
// parameters before it are converted.
//
// Layers of this package convert their input to their type, and losses convert 16-bit values to Float32: see
// [Linear]. Cast panics with a [*device.DTypeError] if dt is not a floating-point type.
func Cast(m Model, dt device.DType, opts *CastOptions) error {
	o := cmp.Or(opts, &CastOptions{})
	if !dt.IsFloat() {
		panic(&device.DTypeError{Op: "Cast", Got: dt, Want: device.Float32})
	}
	kept := map[*value]bool{}
	for _, k := range o.Keep {
		for _, p := range k.Parameters() {
			kept[p.value] = true
		}
	}
	owned := map[*autograd.Variable]bool{} // parameters may share a variable
	for _, p := range m.Parameters() {
		if kept[p.value] {
			continue
		}
		old, from := p.v, p.dtype
		if err := p.cast(dt); err != nil {
			return fmt.Errorf("nn: casting parameter %s to %v: %w", p.name, dt, err)
		}
		keeps := o.Masters && dt.Size() == 2 && from == device.Float32
		if old == nil && from != dt {
			p.keepsMaster = keeps
		} else if old != nil && keeps && !p.Frozen() && !owned[old] {
			owned[old] = true
			p.SetMaster(old)
		}
	}
	return nil
}
