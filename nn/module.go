package nn

import (
	"fmt"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
)

// Module is a part of a model, or the whole.
type Module interface {
	// Forward applies the module.
	Forward(x *autograd.Variable) *autograd.Variable
	// Parameters are the module's, each once, in the order of registration:
	// that in which Forward uses them, as far as there is one. It returns the
	// same parameters on every call.
	Parameters() []*Parameter
}

// Buffered is a [Module] with state that is no parameter, such as running
// means. Wrapping a model for distributed training keeps it equal on all
// ranks.
type Buffered interface {
	Module
	// Buffers are the module's, each once; the same on every call.
	Buffers() []*Buffer
}

// Buffers are m's, if it has any.
func Buffers(m Module) []*Buffer {
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
func Place(m Module, dev device.Device, seed uint64) error {
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
