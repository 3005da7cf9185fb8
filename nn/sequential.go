package nn

import (
	"strconv"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/internal/kernels"
)

// Sequence applies modules one after the other: see [Sequential].
type Sequence struct {
	Container
	steps []step // what Forward applies
}

// step is a module, or several that run as one, by the first one's name.
type step struct {
	name string
	Module
}

// Sequential applies mods one after the other. A parameter's name is the
// module's index and the name that it has there: "0.weight". A module that is
// there twice is one module applied twice: its parameters are there once, by
// the first index. A Linear with a ReLU right behind it runs as one operation.
//
// Where a module panics because a shape or a type does not fit, the panic names it: see
// [device.ShapeError].
func Sequential(mods ...Module) *Sequence {
	s := &Sequence{}
	for i, m := range mods {
		name := strconv.Itoa(i)
		Add(&s.Container, name, m)
		l, after := linearBefore(mods, i)
		if _, ok := m.(relu); ok && after {
			s.steps[len(s.steps)-1].Module = linearReLU{l}
		} else {
			s.steps = append(s.steps, step{name, m})
		}
	}
	return s
}

// linearBefore is the Linear right before the i-th module.
func linearBefore(mods []Module, i int) (*LinearLayer, bool) {
	if i == 0 {
		return nil, false
	}
	l, ok := mods[i-1].(*LinearLayer)
	return l, ok
}

// Forward applies the modules.
func (s *Sequence) Forward(x *autograd.Variable) *autograd.Variable {
	for _, m := range s.steps {
		x = s.apply(m, x)
	}
	return x
}

// apply applies one module. A panic that can name a layer, and does not yet, names m.
func (s *Sequence) apply(m step, x *autograd.Variable) *autograd.Variable {
	defer func() {
		if r := recover(); r != nil {
			kernels.NameLayer(r, s.path(m.name), "")
			panic(r)
		}
	}()
	return m.Forward(x)
}

// linearReLU is a Linear and a ReLU in one operation.
type linearReLU struct{ *LinearLayer }

func (l linearReLU) Forward(x *autograd.Variable) *autograd.Variable {
	return l.forward(x, autograd.LinearReLU)
}
