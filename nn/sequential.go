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

// step is a module, or several modules that run as one operation. Its name is that of the first module.
type step struct {
	name string
	Module
}

// Sequential applies mods one after another. The name of a parameter is the module's index, a dot, and the
// parameter's name in the module: "0.weight". A module that occurs twice in mods is applied twice, but its
// parameters occur once, under the first index. A Linear or a BatchNorm followed by a ReLU is fused, and so
// are two Linears with a GELU or GELUTanh between them: see [FeedForward]. If a ReLU comes before a MaxPool2d, the
// pooling runs first. The ReLU then has fewer elements, and results and gradients are the same.
//
// If a module panics because shapes or types do not match, the panic names the module: see
// [device.ShapeError].
func Sequential(mods ...Module) *Sequence {
	s := &Sequence{}
	for i, m := range mods {
		name := strconv.Itoa(i)
		Add(&s.Container, name, m)
		s.steps = append(s.steps, step{name, m})
		s.fuse()
	}
	return s
}

// fuse replaces the last steps by equivalent faster ones, if there are any.
func (s *Sequence) fuse() {
	at := func(fromEnd int) Module { // at returns a module, counted from the end, or nil if there is none
		if i := len(s.steps) - fromEnd; i >= 0 {
			return s.steps[i].Module
		}
		return nil
	}
	replace := func(n int, m Module) {
		s.steps = s.steps[:len(s.steps)-n+1]
		s.steps[len(s.steps)-1].Module = m
	}
	if _, ok := at(1).(relu); ok {
		switch l := at(2).(type) {
		case *LinearLayer:
			replace(2, linearReLU{l})
		case *BatchNormLayer:
			replace(2, batchNormReLU{l})
		}
	}
	if p, ok := at(1).(*maxPool); ok && !p.empty() {
		if _, ok := at(2).(relu); ok {
			i := len(s.steps) - 2
			s.steps[i], s.steps[i+1] = s.steps[i+1], s.steps[i]
		}
	}
	first, ok := at(3).(*LinearLayer)
	second, also := at(1).(*LinearLayer)
	if !ok || !also {
		return
	}
	if _, ok := feedForwardOptions(at(2)); ok {
		replace(3, feedForward{first, at(2), second})
	}
}

// Forward applies the modules.
func (s *Sequence) Forward(x *autograd.Variable) *autograd.Variable {
	for _, m := range s.steps {
		x = s.apply(m, x)
	}
	return x
}

// apply applies one module. It adds the module's name to a panic that does not name a layer yet.
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
	if l.LowRank != nil {
		return autograd.ReLU(l.LinearLayer.Forward(x))
	}
	weight, bias := l.parameters()
	return autograd.LinearReLU(autograd.Cast(x, l.computeType()), weight, bias)
}

// batchNormReLU is a BatchNorm and a ReLU as one operation.
type batchNormReLU struct{ *BatchNormLayer }

func (l batchNormReLU) Forward(x *autograd.Variable) *autograd.Variable {
	return l.forward(x, nil, true)
}
