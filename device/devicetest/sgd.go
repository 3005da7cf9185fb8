package devicetest

import (
	"bytes"
	"fmt"
	"math"

	"github.com/goddp/goddp/device"
)

// rules are settings of SGD, with and without each of its terms.
var rules = []device.SGDStep{
	{LR: 0.1},
	{LR: 0.1, WeightDecay: 0.01},
	{LR: 0.1, Momentum: 0.9},
	{LR: 0.1, Momentum: 0.9, Dampening: 0.5, WeightDecay: 0.01},
	{LR: 0.1, Momentum: 0.9, Nesterov: true},
	{LR: 0.1, Momentum: 0.9, Nesterov: true, WeightDecay: 0.01},
}

func checkSGD(r *rig) {
	r.sgdSkips()
	for _, rule := range rules {
		each(r, []device.Shape{{}, {0}, {1}, {7}, {257}, {33, 65}}, func(shape device.Shape) {
			r.sgd(rule, shape)
		})
	}
	r.sgd(rules[len(rules)-1], device.Shape{large})
}

// sgd makes three steps and checks the parameter and the velocity after each.
// Each step starts from what the device has, so that errors do not add up.
func (r *rig) sgd(rule device.SGDStep, shape device.Shape) {
	w, v := r.put(r.random(-2, 2, shape...)), r.put(nan(shape))
	for step := range 3 {
		g := r.random(-2, 2, shape...)
		s := rule
		s.Param, s.Grad, s.First = w.Tensor, r.put(g).Tensor, step == 0
		if rule.Momentum != 0 {
			s.Velocity = v.Tensor
		}
		if step == 1 {
			s.Skip = r.place(device.Uint8, device.Shape{3}, make([]byte, 3)).Tensor // none raised
		}
		label := fmt.Sprintf("SGD step %d of %+v", step, rule)
		wantW := value{array{shape, decode(r.dt, r.read(label, w))}, make([]float64, shape.Len()), 8}
		wantV := value{array{shape, decode(r.dt, r.read(label, v))}, make([]float64, shape.Len()), 8}
		for i := range g.v {
			d := g.v[i] + rule.WeightDecay*wantW.v[i]
			scale := math.Abs(g.v[i]) + math.Abs(rule.WeightDecay*wantW.v[i])
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
		r.same(label+": parameter", w, wantW)
		r.same(label+": velocity", v, wantV)
	}
}

// sgdSkips checks that a raised flag, wherever it is, keeps everything as it
// is, bit for bit.
func (r *rig) sgdSkips() {
	many := make([]byte, 1000)
	many[999] = 0x80
	for _, flags := range [][]byte{{1}, {0, 0, 2}, {0xff, 0}, {0, 0, 0x80, 0x3f}, many} {
		w, v, g := r.put(r.random(-2, 2, 1000)), r.put(r.random(-2, 2, 1000)), r.put(r.random(-2, 2, 1000))
		skip := r.place(device.Uint8, device.Shape{len(flags)}, flags)
		label := fmt.Sprintf("SGD with %d flags", len(flags))
		beforeW, beforeV := r.read(label, w), r.read(label, v)
		r.ok(label, r.k.SGD(r.s, device.SGDStep{
			Param: w.Tensor, Grad: g.Tensor, Velocity: v.Tensor, LR: 0.1, Momentum: 0.9, Skip: skip.Tensor,
		}))
		if !bytes.Equal(beforeW, r.read(label, w)) || !bytes.Equal(beforeV, r.read(label, v)) {
			r.fail("%s: wrote the parameter or the velocity", label)
		}
		r.clean()
	}
}
