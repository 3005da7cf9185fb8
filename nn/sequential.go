package nn

import (
	"strconv"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
)

// Sequence applies modules one after the other: see [Sequential].
type Sequence struct {
	steps   []Module // what Forward applies
	params  []*Parameter
	buffers []*Buffer
}

// Sequential applies mods one after the other. A parameter's name is the
// module's index and the name that it has there: "0.weight". A module that is
// there twice is one module applied twice: its parameters are there once, by
// the first index. A Linear with a ReLU right behind it runs as one operation.
func Sequential(mods ...Module) *Sequence {
	s := &Sequence{}
	seen := map[*value]bool{}
	isNew := func(v *value) bool {
		known := seen[v]
		seen[v] = true
		return !known
	}
	for i, m := range mods {
		prefix := strconv.Itoa(i) + "."
		for _, p := range m.Parameters() {
			if isNew(p.value) {
				s.params = append(s.params, &Parameter{prefix + p.name, p.value})
			}
		}
		for _, b := range Buffers(m) {
			if isNew(b.value) {
				s.buffers = append(s.buffers, &Buffer{prefix + b.name, b.value})
			}
		}
		l, after := linearBefore(mods, i)
		if _, ok := m.(relu); ok && after {
			s.steps[len(s.steps)-1] = linearReLU{l}
		} else {
			s.steps = append(s.steps, m)
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
		x = m.Forward(x)
	}
	return x
}

// Parameters are those of the modules, in order.
func (s *Sequence) Parameters() []*Parameter { return s.params }

// Buffers are those of the modules, in order.
func (s *Sequence) Buffers() []*Buffer { return s.buffers }

// linearReLU is a Linear and a ReLU in one operation.
type linearReLU struct{ *LinearLayer }

func (l linearReLU) Forward(x *autograd.Variable) *autograd.Variable {
	return l.forward(x, device.ActReLU)
}
