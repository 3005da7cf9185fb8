package devicetest

import (
	"bytes"
	"fmt"
	"math"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// rules are settings of SGD, with and without each term of the rule.
var rules = []kernels.SGDStep{
	{LR: 0.1},
	{LR: 0.1, WeightDecay: 0.01},
	{LR: 0.1, Momentum: 0.9},
	{LR: 0.1, Momentum: 0.9, Dampening: 0.5, WeightDecay: 0.01},
	{LR: 0.1, Momentum: 0.9, Nesterov: true, LossScale: 8},
	{LR: 0.1, Momentum: 0.9, Nesterov: true, WeightDecay: 0.01, LossScale: 3},
}

func checkSGD(r *rig) {
	kinds := []sgdKind{{grad: r.dt, state: r.dt}}
	if r.dt.Size() == 2 {
		kinds = append(kinds,
			sgdKind{grad: r.dt, state: device.Float32, master: true},
			sgdKind{grad: device.Float32, state: device.Float32, master: true})
	}
	for i, kind := range kinds {
		r.sgdSkips(kind)
		shapes := []device.Shape{{}, {0}, {1}, {7}, {257}, {33, 65}}
		if i > 0 {
			shapes = []device.Shape{{7}, {33, 65}} // the other rules behave the same with master weights
		}
		for _, rule := range rules {
			each(r, shapes, func(shape device.Shape) {
				r.sgd(kind, rule, shape)
			})
		}
	}
	r.sgd(kinds[len(kinds)-1], rules[len(rules)-1], device.Shape{large})
	for _, kind := range kinds {
		r.sgdOfMany(kind)
	}
}

// sgdOfMany checks that one call with many parameters gives the bits of a call for each.
func (r *rig) sgdOfMany(kind sgdKind) {
	const params = 120
	label := fmt.Sprintf("%v of %d parameters", kind, params)
	var steps []kernels.SGDStep
	var alone, batched []operand
	for i := range params {
		shape := device.Shape{[]int{3, 0, 257, 1000, 1, 64}[i%6]}
		o, _ := kind.place(r, shape, r.random(-2, 2, shape...))
		rule := kernels.SGDStep{LR: 0.1, Momentum: 0.9}
		if i >= params/2 {
			rule.WeightDecay = 0.01 // these have another rule
		}
		copied := o
		for _, c := range []struct{ to, from *operand }{{&copied.param, &o.param}, {&copied.state, &o.state}, {&copied.velocity, &o.velocity}} {
			*c.to = r.place(c.from.DType, shape, r.read(label, *c.from))
		}
		if !kind.master {
			copied.state = copied.param
		}
		steps = append(steps, copied.step(kind, rule))
		batched = append(batched, copied.param, copied.state, copied.velocity)
		alone = append(alone, o.param, o.state, o.velocity)
		r.ok(label, r.k.SGD(r.s, o.step(kind, rule)))
	}
	r.ok(label, r.k.SGD(r.s, steps...))
	for i, o := range alone {
		if !bytes.Equal(r.read(label, o), r.read(label, batched[i])) {
			r.fail("%s: parameter %d differs from that of a call of its own", label, i/3)
		}
	}
	r.clean()
}

// sgdKind is a choice of types for a step: the gradient's type, the type that the rule computes in,
// and the velocity's type.
type sgdKind struct {
	grad, state device.DType
	master      bool
}

func (k sgdKind) String() string {
	if !k.master {
		return "SGD"
	}
	return fmt.Sprintf("SGD with a master and gradients of %v", k.grad)
}

// sgdOperands holds the operands of a step.
type sgdOperands struct{ param, state, velocity, grad operand }

// place makes operands of a shape, with random numbers except for the velocity.
func (k sgdKind) place(r *rig, shape device.Shape, velocity array) (o sgdOperands, g array) {
	put := func(dt device.DType, a array) operand { return r.place(dt, a.shape, encode(dt, a.v)) }
	w := r.random(-2, 2, shape...)
	o.param = r.put(w)
	o.state = o.param
	if k.master {
		o.state = put(k.state, w)
	}
	o.velocity = put(k.state, velocity)
	g = r.random(-2, 2, shape...)
	o.grad = put(k.grad, g)
	return o, g
}

// step returns a step of the rule with the operands.
func (o sgdOperands) step(k sgdKind, rule kernels.SGDStep) kernels.SGDStep {
	rule.Param, rule.Grad = o.param.Tensor, o.grad.Tensor
	if k.master {
		rule.Master = o.state.Tensor
	}
	if rule.Momentum != 0 {
		rule.Velocity = o.velocity.Tensor
	}
	return rule
}

// sgd makes three steps, and after each it checks the parameter, its master weight and the
// velocity. The reference of each step starts from the device's result of the step before, so that
// errors do not accumulate.
func (r *rig) sgd(kind sgdKind, rule kernels.SGDStep, shape device.Shape) {
	o, g := kind.place(r, shape, nan(shape))
	for step := range 3 {
		s := o.step(kind, rule)
		s.First = step == 0
		if step == 1 { // no flag is raised
			s.Skip = r.place(device.Uint8, device.Shape{3}, make([]byte, 3)).Tensor
			s.Overflow = r.place(device.Uint8, device.Shape{1}, make([]byte, 1)).Tensor
		}
		if step == 2 {
			v := s.Numbers()
			s.At, s.LR, s.LossScale = r.numbers(v[:]), math.NaN(), math.NaN()
		}
		label := fmt.Sprintf("%v, step %d with rate %v, momentum %v, dampening %v, decay %v, Nesterov %v, loss scale %v", kind, step,
			rule.LR, rule.Momentum, rule.Dampening, rule.WeightDecay, rule.Nesterov, rule.LossScale)
		wantW := value{array{shape, decode(kind.state, r.read(label, o.state))}, make([]float64, shape.Len()), 8}
		wantV := value{array{shape, decode(kind.state, r.read(label, o.velocity))}, make([]float64, shape.Len()), 8}
		for i := range g.v {
			d := g.v[i] * rule.Numbers()[1]
			scale := math.Abs(d) + math.Abs(rule.WeightDecay*wantW.v[i])
			d += rule.WeightDecay * wantW.v[i]
			if rule.Momentum != 0 {
				old := wantV.v[i]
				wantV.v[i], wantV.scale[i] = d, scale
				if step > 0 {
					wantV.v[i] = rule.Momentum*old + (1-rule.Dampening)*d
					wantV.scale[i] = math.Abs(old) + scale
				}
				if rule.Nesterov {
					d += rule.Momentum * wantV.v[i]
				} else {
					d = wantV.v[i]
				}
				scale += wantV.scale[i]
			}
			wantW.scale[i] = math.Abs(wantW.v[i]) + rule.LR*scale
			wantW.v[i] -= rule.LR * d
		}
		r.ok(label, r.k.SGD(r.s, s))
		r.same(label+": velocity", o.velocity, wantV)
		r.same(label+": what the rule is applied to", o.state, wantW)
		if kind.master {
			rounded := encode(r.dt, decode(kind.state, r.read(label, o.state)))
			if !bytes.Equal(r.read(label, o.param), rounded) {
				r.fail("%s: the parameter is not what rounds its master", label)
			}
		}
	}
}

// numbers places numbers that an update reads from device memory.
func (r *rig) numbers(v []float64) device.Tensor {
	return r.place(device.Float64, device.Shape{len(v)}, encode(device.Float64, v)).Tensor
}

// sgdSkips checks that a step with a raised flag, at any position among the flags, changes nothing,
// bit for bit.
func (r *rig) sgdSkips(kind sgdKind) {
	many := make([]byte, 1000)
	many[999] = 0x80
	for _, flags := range [][]byte{{1}, {0, 0, 2}, {0xff, 0}, {0, 0, 0x80, 0x3f}, many} {
		for _, overflow := range []bool{false, true} {
			shape := device.Shape{1000}
			o, _ := kind.place(r, shape, r.random(-2, 2, shape...))
			raised := r.place(device.Uint8, device.Shape{len(flags)}, flags)
			lowered := r.place(device.Uint8, device.Shape{2}, make([]byte, 2))
			label := fmt.Sprintf("%v with %d flags, of an overflow: %v", kind, len(flags), overflow)
			s := o.step(kind, kernels.SGDStep{LR: 0.1, Momentum: 0.9})
			s.Skip, s.Overflow = raised.Tensor, lowered.Tensor
			if overflow {
				s.Skip, s.Overflow = s.Overflow, s.Skip
			}
			var before [][]byte
			written := []operand{o.param, o.state, o.velocity}
			for _, w := range written {
				before = append(before, r.read(label, w))
			}
			r.ok(label, r.k.SGD(r.s, s))
			for i, w := range written {
				if !bytes.Equal(before[i], r.read(label, w)) {
					r.fail("%s: wrote the parameter, its master or the velocity", label)
				}
			}
			r.clean()
		}
	}
}
