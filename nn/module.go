package nn

import (
	"fmt"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
)

// Model is what has parameters: a part of a network, or the whole. Its Forward may
// take and return any number of variables, and is no part of the interface: placing,
// saving, casting and training need the parameters alone.
type Model interface {
	// Parameters are the model's, each once, in the order of registration:
	// that in which Forward uses them, as far as there is one. It returns the
	// same parameters on every call.
	Parameters() []*Parameter
}

// Module is a [Model] that maps one variable to one variable, as [Sequential] takes it.
type Module interface {
	Model
	// Forward applies the module.
	Forward(x *autograd.Variable) *autograd.Variable
}

// Buffered is a [Model] with state that is no parameter, such as running
// means. Wrapping a model for distributed training keeps it equal on all
// ranks.
type Buffered interface {
	Model
	// Buffers are the model's, each once; the same on every call.
	Buffers() []*Buffer
}

// Buffers are m's, if it has any.
func Buffers(m Model) []*Buffer {
	if b, ok := m.(Buffered); ok {
		return b.Buffers()
	}
	return nil
}

// Place gives m's parameters and buffers memory on dev and their first values,
// drawn from the sequence of random numbers that seed selects. What has its
// place there already keeps it and its values, so Place may be called again;
// it panics with an [*autograd.DeviceError] for what has one on another
// device. The error is that of the device.
func Place(m Model, dev device.Device, seed uint64) error {
	var offset uint64
	place := func(kind, name string, v *value) error {
		if err := v.place(dev, name, seed, offset); err != nil {
			return fmt.Errorf("nn: placing %s %s on %v: %w", kind, name, dev, err)
		}
		offset += uint64(v.shape.Len())
		return nil
	}
	for _, p := range m.Parameters() {
		had := p.Placed()
		if err := place("parameter", p.name, p.value); err != nil {
			return err
		}
		if !had && !p.frozen {
			p.v.RequireGrad()
		}
	}
	for _, b := range Buffers(m) {
		if err := place("buffer", b.name, b.value); err != nil {
			return err
		}
	}
	return nil
}
