package autograd_test

import (
	"slices"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
)

// Operations that one kernel may compute together have the results and gradients of separate ones.
func TestJointOperations(t *testing.T) {
	dev := newDevice(t)
	values := func(n int, from float64) []float64 {
		v := make([]float64, n)
		for i := range v {
			v[i] = from + float64(i%7)*0.25 - float64(i%3)
		}
		return v
	}
	cos, sin := autograd.RotaryAngles(dev, device.Float64, 3, 4, 100)
	for name, f := range map[string]func(isJoint bool, x, w, v, b *autograd.Variable) []*autograd.Variable{
		"Linears": func(isJoint bool, x, w, v, b *autograd.Variable) []*autograd.Variable {
			if isJoint {
				return autograd.Linears(x, []*autograd.Variable{w, v}, []*autograd.Variable{nil, b})
			}
			return []*autograd.Variable{autograd.Linear(x, w, nil), autograd.Linear(x, v, b)}
		},
		"RotaryBoth": func(isJoint bool, x, w, _, _ *autograd.Variable) []*autograd.Variable {
			x, w = autograd.Reshape(x, 1, 3, 2, 4), autograd.Reshape(w, 1, 2, 1, 8)
			if isJoint {
				y, z := autograd.RotaryBoth(x, w, cos, sin)
				return []*autograd.Variable{y, z}
			}
			return []*autograd.Variable{autograd.Rotary(x, cos, sin, nil), autograd.Rotary(w, cos, sin, nil)}
		},
	} {
		var of [2][]float64 // results, then gradients
		for i, isJoint := range []bool{false, true} {
			in := []*autograd.Variable{
				autograd.FromSlice(dev, values(24, 0.5), 3, 8).RequireGrad(), autograd.FromSlice(dev, values(16, -1), 2, 8).RequireGrad(),
				autograd.FromSlice(dev, values(40, 2), 5, 8).RequireGrad(), autograd.FromSlice(dev, values(5, 1), 5).RequireGrad(),
			}
			out := f(isJoint, in[0], in[1], in[2], in[3])
			var loss *autograd.Variable
			for _, y := range out {
				of[i] = append(of[i], read(t, y)...)
				term := autograd.Sum(autograd.Mul(y, y))
				if loss != nil {
					term = autograd.Add(loss, term)
				}
				loss = term
			}
			if err := loss.Backward(nil); err != nil {
				t.Fatal(err)
			}
			for _, v := range in {
				if g := v.Grad(); g != nil {
					of[i] = append(of[i], read(t, g)...)
				}
			}
		}
		if !slices.Equal(of[0], of[1]) {
			t.Errorf("%s: %v, separately %v", name, of[1], of[0])
		}
	}
}
