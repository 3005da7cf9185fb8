package autograd_test

import (
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
)

func TestSelectionGradients(t *testing.T) {
	mask := func(x *autograd.Variable, m []uint8, shape ...int) *autograd.Variable {
		return autograd.FromSlice(x.Device(), m, shape...)
	}
	one := func(name string, f func(x *autograd.Variable) *autograd.Variable, shape ...int) gradCase {
		return gradCase{name, []device.Shape{shape}, -2, 2, func(in variables) *autograd.Variable { return f(in[0]) }}
	}
	checkGradients(t, []gradCase{
		{"Where", []device.Shape{{2, 3}, {3}}, -2, 2, func(in variables) *autograd.Variable {
			return autograd.Where(mask(in[0], []uint8{1, 0}, 2, 1), in[0], in[1])
		}},
		{"Where of numbers", []device.Shape{{}, {2, 1}}, -2, 2, func(in variables) *autograd.Variable {
			return autograd.Where(mask(in[0], []uint8{1, 0, 0, 1, 1, 0}, 2, 3), in[0], in[1])
		}},
		one("MaskedFill", func(x *autograd.Variable) *autograd.Variable {
			return autograd.MaskedFill(x, mask(x, []uint8{0, 1, 1}), -7)
		}, 2, 3),
		one("Max", func(x *autograd.Variable) *autograd.Variable { return autograd.Max(x) }, 2, 3),
		one("Max over an axis", func(x *autograd.Variable) *autograd.Variable { return autograd.Max(x, 2, 1, 4) }, 2, 3, 4),
		one("Min over two axes", func(x *autograd.Variable) *autograd.Variable { return autograd.Min(x, 1, 3, 1) }, 2, 3, 4),
	})
}
