package nn

import (
	"fmt"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
)

// Model is a part of a network, or a whole network, with parameters. Its Forward is not part of the
// interface and may have any parameters and results: placing, saving, casting and training a model
// need only its parameters.
//
// A model with buffers also has a method Buffers() []*Buffer, which returns each buffer once, the same ones
// on every call. A model that computes differently in training and in evaluation, or contains such a model,
// also has the methods SetTraining(on bool) and Training() bool; if it lacks Training, it counts as being in
// training mode. A [Container] has all three methods.
type Model interface {
	// Parameters returns each parameter once, in the order of registration, which should be the
	// order in which Forward uses them. Every call returns the same parameters.
	Parameters() []*Parameter
}

// Module is a [Model] that maps one variable to one variable, such as a part of a [Sequential].
type Module interface {
	Model
	// Forward applies the module.
	Forward(x *autograd.Variable) *autograd.Variable
}

// Buffers returns the buffers of m, nil if m has no method Buffers.
func Buffers(m Model) []*Buffer {
	if b, ok := m.(interface{ Buffers() []*Buffer }); ok {
		return b.Buffers()
	}
	return nil
}

// Place allocates m's parameters and buffers on dev and initializes them from the random sequence selected
// by seed. Parameters and buffers that are already placed are not changed, so Place may be called again.
// Place panics with an [*autograd.DeviceError] if one of them is on another device. The error comes from the
// device.
func Place(m Model, dev device.Device, seed uint64) error {
	return PlaceExcept(m, dev, seed, func(*Parameter) bool { return false })
}

// PlaceExcept is Place for all but the parameters for which leaves returns true. Afterwards their method Initial returns
// the values that Place would have given them. So the caller can place them one after the other ([Parameter.PlaceAt]),
// for example to keep only a part of each.
func PlaceExcept(m Model, dev device.Device, seed uint64, leaves func(*Parameter) bool) error {
	var offset uint64
	place := func(kind, name string, v *value, create func(device.Device) error) error {
		v.seed, v.offset = seed, offset
		offset += uint64(v.shape.Len())
		err := error(nil)
		if v.isOn(dev, name) {
			err = v.v.Err()
		} else {
			err = create(dev)
		}
		if err != nil {
			return fmt.Errorf("nn: placing %s %s on %v: %w", kind, name, dev, err)
		}
		return nil
	}
	for _, p := range m.Parameters() {
		create := p.create
		if leaves(p) {
			create = func(device.Device) error { return nil }
		}
		if err := place("parameter", p.name, p.value, create); err != nil {
			return err
		}
	}
	for _, b := range Buffers(m) {
		if err := place("buffer", b.name, b.value, b.create); err != nil {
			return err
		}
	}
	return nil
}
