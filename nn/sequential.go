package nn

import (
	"strconv"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/internal/kernels"
)

// Sequence applies modules one after another: see [Sequential].
type Sequence struct {
	Container
	steps []step // the modules that Forward applies
}

// step is a module, or two modules that run as one operation, with the first one's name.
type step struct {
	name string
	Module
}

// Sequential applies mods one after another. The name of a parameter is the module's index, a dot, and
// the parameter's name in the module: "0.weight". A module that occurs twice in mods is applied twice,
// but its parameters occur once, by the first index. A Linear followed by a ReLU runs as one operation.
//
// If a module panics because shapes or types do not fit, the panic names the module: see
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

// linearBefore returns the Linear directly before the i-th module, if there is one.
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

// apply applies one module. It adds the module's name to a panic that names no layer yet.
func (s *Sequence) apply(m step, x *autograd.Variable) *autograd.Variable {
	defer func() {
		if r := recover(); r != nil {
			kernels.NameLayer(r, s.path(m.name), "")
			panic(r)
		}
	}()
	return m.Forward(x)
}

// linearReLU is a Linear and a ReLU as one operation.
type linearReLU struct{ *LinearLayer }

func (l linearReLU) Forward(x *autograd.Variable) *autograd.Variable {
	return l.forward(x, autograd.LinearReLU)
}
