package devicetest

import (
	"bytes"
	"fmt"
	"math"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// rmsPropRules are settings of RMSProp, with and without each term of the rule.
var rmsPropRules = []kernels.RMSPropStep{
	{LR: 0.1, Alpha: 0.99, Eps: 0.01},
	{LR: 0.1, Alpha: 0.9, Eps: 0.1, WeightDecay: 0.1, LossScale: 8},
	{LR: 0.1, Alpha: 0.9, Eps: 0.1, Momentum: 0.9, LossScale: 3},
	{LR: 0.1, Alpha: 0.5, Eps: 0.1, Centered: true},
	{LR: 0.1, Alpha: 0.5, Eps: 0.1, Momentum: 0.9, Centered: true, WeightDecay: 0.01},
}

func checkRMSProp(r *rig) {
	kinds := []sgdKind{{grad: r.dt, state: r.dt}}
	if r.dt.Size() == 2 {
		kinds = append(kinds,
			sgdKind{grad: r.dt, state: device.Float32, master: true},
			sgdKind{grad: device.Float32, state: device.Float32, master: true})
	}
	for i, kind := range kinds {
		r.rmsPropSkips(kind)
		shapes := []device.Shape{{}, {0}, {1}, {7}, {257}, {33, 65}}
		if i > 0 {
			shapes = []device.Shape{{7}, {33, 65}} // the other rules behave the same with master weights
		}
		for _, rule := range rmsPropRules {
			each(r, shapes, func(shape device.Shape) { r.rmsProp(kind, rule, shape) })
		}
	}
	r.rmsProp(kinds[len(kinds)-1], rmsPropRules[4], device.Shape{large})
}

// rmsPropOperands holds the operands of a step.
type rmsPropOperands struct {
	sgdOperands
	square, mean operand
}

// placeRMSProp makes operands of a shape. The state is zero.
func (r *rig) placeRMSProp(k sgdKind, shape device.Shape) (o rmsPropOperands, g array) {
	o.sgdOperands, g = k.place(r, shape, newArray(shape...))
	zeros := make([]byte, shape.Len()*k.state.Size())
	o.square, o.mean = r.place(k.state, shape, zeros), r.place(k.state, shape, zeros)
	return o, g
}

// step returns a step of the rule with the operands.
func (o rmsPropOperands) step(k sgdKind, rule kernels.RMSPropStep) kernels.RMSPropStep {
	rule.Param, rule.Grad, rule.Square = o.param.Tensor, o.grad.Tensor, o.square.Tensor
	if k.master {
		rule.Master = o.state.Tensor
	}
	if rule.Centered {
		rule.Mean = o.mean.Tensor
	}
	if rule.Momentum != 0 {
		rule.Velocity = o.velocity.Tensor
	}
	return rule
}

// rmsProp makes three steps, and after each it checks the parameter, its master weight and the
// state. The reference of each step starts from the device's result of the step before, so that
// errors do not accumulate.
func (r *rig) rmsProp(kind sgdKind, rule kernels.RMSPropStep, shape device.Shape) {
	o, g := r.placeRMSProp(kind, shape)
	for n := 1; n <= 3; n++ {
		s := o.step(kind, rule)
		if n == 2 { // no flag is raised
			s.Skip = r.place(device.Uint8, device.Shape{3}, make([]byte, 3)).Tensor
			s.Overflow = r.place(device.Uint8, device.Shape{1}, make([]byte, 1)).Tensor
		}
		if n == 3 {
			v := s.Numbers()
			s.At, s.LR, s.LossScale = r.numbers(v[:]), math.NaN(), math.NaN()
		}
		label := fmt.Sprintf("RMSProp with a master: %v and gradients of %v, step %d with rate %v, alpha %v, eps %v, decay %v, momentum %v, centered %v, loss scale %v",
			kind.master, kind.grad, n, rule.LR, rule.Alpha, rule.Eps, rule.WeightDecay, rule.Momentum, rule.Centered, rule.LossScale)
		held := func(o operand) value {
			return value{array{shape, decode(kind.state, r.read(label, o))}, make([]float64, shape.Len()), 16}
		}
		w, sq, m, v := held(o.state), held(o.square), held(o.mean), held(o.velocity)
		for i := range g.v {
			x, d := w.v[i], g.v[i]*rule.Numbers()[1]
			of := math.Abs(d) + rule.WeightDecay*math.Abs(x) // of: d may be off by some eps of this number
			d += rule.WeightDecay * x
			sq.scale[i] = rule.Alpha*sq.v[i] + (1-rule.Alpha)*of*of
			sq.v[i] = rule.Alpha*sq.v[i] + (1-rule.Alpha)*d*d
			square, squareScale := sq.v[i], sq.scale[i]
			if rule.Centered {
				m.scale[i] = rule.Alpha*math.Abs(m.v[i]) + (1-rule.Alpha)*of
				m.v[i] = rule.Alpha*m.v[i] + (1-rule.Alpha)*d
				square -= m.v[i] * m.v[i]
				squareScale += m.scale[i] * m.scale[i]
			}
			root := math.Sqrt(square)
			d /= root + rule.Eps
			scale := of / (root + rule.Eps)
			if square > 0 { // the error of the square changes the root by squareScale/root/2 times an eps
				scale += math.Abs(d) * squareScale / root / (root + rule.Eps)
			}
			if rule.Momentum != 0 {
				d += rule.Momentum * v.v[i]
				v.scale[i] = scale + rule.Momentum*math.Abs(v.v[i])
				v.v[i], scale = d, v.scale[i]
			}
			w.v[i] = x - rule.LR*d
			w.scale[i] = math.Abs(x) + rule.LR*scale
		}
		r.ok(label, r.k.RMSProp(r.s, s))
		r.same(label+": square", o.square, sq)
		r.same(label+": mean", o.mean, m)
		r.same(label+": velocity", o.velocity, v)
		r.same(label+": what the rule is applied to", o.state, w)
		if kind.master {
			rounded := encode(r.dt, decode(kind.state, r.read(label, o.state)))
			if !bytes.Equal(r.read(label, o.param), rounded) {
				r.fail("%s: the parameter is not what rounds its master", label)
			}
		}
	}
}

// rmsPropSkips checks that a step with a raised flag changes nothing, bit for bit.
func (r *rig) rmsPropSkips(kind sgdKind) {
	for _, overflow := range []bool{false, true} {
		shape := device.Shape{1000}
		o, _ := r.placeRMSProp(kind, shape)
		raised := r.place(device.Uint8, device.Shape{3}, []byte{0, 0, 2})
		lowered := r.place(device.Uint8, device.Shape{2}, make([]byte, 2))
		label := fmt.Sprintf("RMSProp with a flag, of an overflow: %v", overflow)
		s := o.step(kind, rmsPropRules[4])
		s.Skip, s.Overflow = raised.Tensor, lowered.Tensor
		if overflow {
			s.Skip, s.Overflow = s.Overflow, s.Skip
		}
		var before [][]byte
		written := []operand{o.param, o.state, o.square, o.mean, o.velocity}
		for _, w := range written {
			before = append(before, r.read(label, w))
		}
		r.ok(label, r.k.RMSProp(r.s, s))
		for i, w := range written {
			if !bytes.Equal(before[i], r.read(label, w)) {
				r.fail("%s: wrote the parameter, its master or what is kept", label)
			}
		}
		r.clean()
	}
}
