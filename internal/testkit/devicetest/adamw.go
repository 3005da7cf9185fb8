package devicetest

import (
	"bytes"
	"fmt"
	"math"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// adamRules are settings of AdamW, with and without each term of the rule.
var adamRules = []kernels.AdamWStep{
	{LR: 0.1, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8},
	{LR: 0.1, Beta1: 0.9, Beta2: 0.99, Eps: 0.01, WeightDecay: 0.1},
	{LR: 0.1, Beta1: 0.5, Beta2: 0.9, Eps: 0.01, WeightDecay: 0.01, Coupled: true, LossScale: 8},
	{LR: 0.1, Eps: 1, LossScale: 3},
}

// amsGrad is the number of rules that are also checked with a MaxVariance.
const amsGrad = 3

func checkAdamW(r *rig) {
	kinds := []adamKind{{sgdKind: sgdKind{grad: r.dt, state: r.dt}}}
	if r.dt.Size() == 2 {
		kinds = append(kinds,
			adamKind{sgdKind: sgdKind{grad: r.dt, state: device.Float32, master: true}},
			adamKind{sgdKind: sgdKind{grad: device.Float32, state: device.Float32, master: true}},
			adamKind{sgdKind: sgdKind{grad: r.dt, state: device.Float32, master: true}, isNarrow: true},
			adamKind{sgdKind: sgdKind{grad: device.Float32, state: device.Float32, master: true}, isNarrow: true})
	}
	if r.dt == device.Float32 {
		kinds = append(kinds, adamKind{sgdKind: sgdKind{grad: r.dt, state: r.dt}, isNarrow: true})
	}
	for i, kind := range kinds {
		r.adamWSkips(kind)
		shapes := []device.Shape{{}, {0}, {1}, {7}, {257}, {33, 65}}
		if i > 0 {
			shapes = []device.Shape{{7}, {33, 65}} // the other rules behave the same with master weights
		}
		for _, rule := range adamRules {
			each(r, shapes, func(shape device.Shape) { r.adamW(kind, rule, shape) })
		}
		kind.amsgrad = true
		r.adamWSkips(kind)
		for _, rule := range adamRules[:amsGrad] {
			each(r, shapes, func(shape device.Shape) { r.adamW(kind, rule, shape) })
		}
	}
	r.adamW(kinds[len(kinds)-1], adamRules[2], device.Shape{large})
	for _, kind := range kinds {
		if kind.isNarrow {
			r.adamWRounding(kind)
		}
	}
}

// adamWRounding checks that narrow moments are rounded at random: up so often that the expected error is 0, independently
// of the place in memory, and that NaN stays NaN.
func (r *rig) adamWRounding(kind adamKind) {
	const n = 1 << 14
	label := kind.String()
	means, ones := r.random(-2, 2, n), newArray(n)
	for i := range ones.v {
		ones.v[i] = 1
	}
	step := func(from int, grad float64, count int) (mean, variance []float64) {
		part := device.Shape{n - from}
		o, _ := kind.place(r, part, array{part, means.v[from:]}, array{part, ones.v[from:]})
		grads := newArray(n - from)
		for i := range grads.v {
			grads.v[i] = grad
		}
		r.fill(o.grad, encode(o.grad.DType, grads.v))
		r.ok(label, r.k.AdamW(r.s, o.step(kind, kernels.AdamWStep{LR: 0.1, Beta1: 0.9, Beta2: 0.999}, count)))
		defer r.clean()
		return decode(o.velocity.DType, r.read(label, o.velocity)), decode(o.variance.DType, r.read(label, o.variance))
	}
	mean, variance := step(0, 1.25, 7)
	_, other := step(0, 1.25, 8)
	atMean, atVariance := step(n/2+3, 1.25, 7)
	rounded := decode(device.BFloat16, encode(device.BFloat16, means.v))
	const want, up, down = 0.999 + 0.001*1.25*1.25, 1 + 1./128, 1.
	var off, sum float64 // off: the sum of the errors of means, in units of the last place
	differ := false
	for i, v := range variance {
		exact := 0.9*rounded[i] + 0.1*1.25
		off += (mean[i] - exact) / math.Ldexp(1, math.Ilogb(exact)-7)
		sum += v
		differ = differ || other[i] != v
		if v != up && v != down {
			r.fail("%s: a variance of %v became %v, want %v or %v", label, want, v, up, down)
		}
		if at := i - n/2 - 3; at >= 0 && (atMean[at] != mean[i] || atVariance[at] != v) {
			r.fail("%s: moments are rounded otherwise at another place", label)
		}
	}
	if off, got := off/n, sum/n; math.Abs(off) > 0.02 || math.Abs(got-want) > 1e-4 || !differ {
		r.fail("%s: means are off by %v units in the last place on average, the average variance is %v, want %v; other steps differ: %v", label, off, got, want, differ)
	}
	for _, bad := range []float64{math.NaN(), math.Inf(1)} {
		if mean, variance := step(0, bad, 2); !math.IsNaN(mean[0]) && !math.IsInf(mean[0], 0) || variance[0] == variance[0] && !math.IsInf(variance[0], 0) {
			r.fail("%s: a gradient of %v makes a mean of %v and a variance of %v", label, bad, mean[0], variance[0])
		}
	}
}

// adamKind is a choice of types for a step of AdamW. The velocity's type is that of both moments.
type adamKind struct {
	sgdKind
	isNarrow bool // both moments are BFloat16
	amsgrad  bool
}

// moments returns the type of the moments.
func (k adamKind) moments() device.DType {
	if k.isNarrow {
		return device.BFloat16
	}
	return k.state
}

func (k adamKind) String() string {
	name := "AdamW"
	if k.amsgrad {
		name = "AdamW by AMSGrad"
	}
	if k.isNarrow {
		name += " with moments of bfloat16"
	}
	if !k.master {
		return name
	}
	return fmt.Sprintf("%s, with a master and gradients of %v", name, k.grad)
}

// adamOperands holds the operands of a step. Its velocity is the mean.
type adamOperands struct {
	sgdOperands
	variance, most operand
}

func (k adamKind) place(r *rig, shape device.Shape, mean, variance array) (o adamOperands, g array) {
	o.sgdOperands, g = k.sgdKind.place(r, shape, mean)
	o.velocity = r.place(k.moments(), shape, encode(k.moments(), mean.v))
	o.variance = r.place(k.moments(), shape, encode(k.moments(), variance.v))
	o.most = r.place(k.moments(), shape, encode(k.moments(), variance.v))
	return o, g
}

// step returns the n-th step of the rule with the operands.
func (o adamOperands) step(k adamKind, rule kernels.AdamWStep, n int) kernels.AdamWStep {
	rule.Param, rule.Grad, rule.Mean, rule.Variance = o.param.Tensor, o.grad.Tensor, o.velocity.Tensor, o.variance.Tensor
	if k.master {
		rule.Master = o.state.Tensor
	}
	if k.amsgrad {
		rule.MaxVariance = o.most.Tensor
	}
	rule.Step = n
	return rule
}

// adamW makes three steps, and after each it checks the parameter, its master weight and the
// moments. The reference of each step starts from the device's result of the step before, so that
// errors do not accumulate. Before the first step the moments hold NaN, which the step must
// overwrite. With AMSGrad, MaxVariance is larger than all later variances before the second step.
func (r *rig) adamW(kind adamKind, rule kernels.AdamWStep, shape device.Shape) {
	o, g := kind.place(r, shape, nan(shape), nan(shape))
	for n := 1; n <= 3; n++ {
		s := o.step(kind, rule, n)
		if n == 2 { // no flag is raised
			s.Skip = r.place(device.Uint8, device.Shape{3}, make([]byte, 3)).Tensor
			s.Overflow = r.place(device.Uint8, device.Shape{1}, make([]byte, 1)).Tensor
		}
		if n == 2 && kind.amsgrad {
			high := newArray(shape...)
			for i := range high.v {
				high.v[i] = float64(2 * (i % 2)) // every other element is below all later variances
			}
			r.fill(o.most, encode(kind.moments(), high.v))
		}
		if n == 3 {
			v := s.Numbers()
			s.At, s.LR, s.LossScale = r.numbers(v[:]), math.NaN(), math.NaN()
		}
		label := fmt.Sprintf("%v, step %d with rate %v, betas %v and %v, eps %v, decay %v, coupled %v, loss scale %v", kind, n,
			rule.LR, rule.Beta1, rule.Beta2, rule.Eps, rule.WeightDecay, rule.Coupled, rule.LossScale)
		held := func(o operand) value {
			return value{array{shape, decode(o.DType, r.read(label, o))}, make([]float64, shape.Len()), 16}
		}
		w, m, v, most := held(o.state), held(o.velocity), held(o.variance), held(o.most)
		for i := range g.v {
			if n == 1 {
				m.v[i], v.v[i], most.v[i] = 0, 0, 0
			}
			x, d := w.v[i], g.v[i]*rule.Numbers()[3]
			of := math.Abs(d) // of: d may be off by some eps of this number
			if rule.Coupled {
				d += rule.WeightDecay * x
				of += rule.WeightDecay * math.Abs(x)
			} else {
				x -= rule.LR * rule.WeightDecay * x
			}
			m.scale[i] = rule.Beta1*math.Abs(m.v[i]) + (1-rule.Beta1)*of
			m.v[i] = rule.Beta1*m.v[i] + (1-rule.Beta1)*d
			v.scale[i] = rule.Beta2*v.v[i] + (1-rule.Beta2)*of*of
			v.v[i] = rule.Beta2*v.v[i] + (1-rule.Beta2)*d*d
			if most.scale[i] = v.scale[i]; most.v[i] < v.v[i] || !kind.amsgrad {
				most.v[i] = v.v[i]
			}
			root := math.Sqrt(most.v[i] / (1 - math.Pow(rule.Beta2, float64(n))))
			rate := rule.LR / (1 - math.Pow(rule.Beta1, float64(n))) / (root + rule.Eps)
			w.v[i] = x - rate*m.v[i]
			w.scale[i] = math.Abs(x) + rate*m.scale[i]
			if most.v[i] > 0 {
				w.scale[i] += rate * math.Abs(m.v[i]) * v.scale[i] / most.v[i]
			}
		}
		r.ok(label, r.k.AdamW(r.s, s))
		r.same(label+": mean", o.velocity, m)
		r.same(label+": variance", o.variance, v)
		if kind.amsgrad {
			r.same(label+": most variance", o.most, most)
		}
		r.same(label+": what the rule is applied to", o.state, w)
		if kind.master {
			rounded := encode(r.dt, decode(kind.state, r.read(label, o.state)))
			if !bytes.Equal(r.read(label, o.param), rounded) {
				r.fail("%s: the parameter is not what rounds its master", label)
			}
		}
	}
}

// adamWSkips checks that a step with a raised flag, at any position among the flags, changes
// nothing, bit for bit.
func (r *rig) adamWSkips(kind adamKind) {
	many := make([]byte, 1000)
	many[999] = 0x80
	for _, flags := range [][]byte{{1}, {0, 0, 2}, many} {
		for _, overflow := range []bool{false, true} {
			shape := device.Shape{1000}
			o, _ := kind.place(r, shape, r.random(-2, 2, shape...), r.random(0, 2, shape...))
			raised := r.place(device.Uint8, device.Shape{len(flags)}, flags)
			lowered := r.place(device.Uint8, device.Shape{2}, make([]byte, 2))
			label := fmt.Sprintf("%v with %d flags, of an overflow: %v", kind, len(flags), overflow)
			s := o.step(kind, adamRules[0], 2)
			s.Skip, s.Overflow = raised.Tensor, lowered.Tensor
			if overflow {
				s.Skip, s.Overflow = s.Overflow, s.Skip
			}
			var before [][]byte
			written := []operand{o.param, o.state, o.velocity, o.variance, o.most}
			for _, w := range written {
				before = append(before, r.read(label, w))
			}
			r.ok(label, r.k.AdamW(r.s, s))
			for i, w := range written {
				if !bytes.Equal(before[i], r.read(label, w)) {
					r.fail("%s: wrote the parameter, its master or a moment", label)
				}
			}
			r.clean()
		}
	}
}
