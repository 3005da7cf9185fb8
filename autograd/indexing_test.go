package autograd_test

import (
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
)

func TestIndexingGradients(t *testing.T) {
	index := func(x *autograd.Variable, at []int64, shape ...int) *autograd.Variable {
		return autograd.FromSlice(x.Device(), at, shape...)
	}
	one := func(name string, f func(x *autograd.Variable) *autograd.Variable, shape ...int) gradCase {
		return gradCase{name, []device.Shape{shape}, -2, 2, func(in variables) *autograd.Variable { return f(in[0]) }}
	}
	checkGradients(t, []gradCase{
		one("IndexSelect", func(x *autograd.Variable) *autograd.Variable {
			return autograd.IndexSelect(x, 1, index(x, []int64{2, 0, 2, 2}))
		}, 2, 3, 2),
		one("Embedding", func(x *autograd.Variable) *autograd.Variable {
			return autograd.Embedding(x, index(x, []int64{4, 1, 4, 0, 1, 4}, 2, 3))
		}, 5, 3),
		one("Gather", func(x *autograd.Variable) *autograd.Variable {
			return autograd.Gather(x, -1, index(x, []int64{0, 0, 3, 1, 3, 3}, 3, 2))
		}, 3, 4),
		one("Gather of a part", func(x *autograd.Variable) *autograd.Variable {
			return autograd.Gather(x, 0, index(x, []int64{2, 1, 2, 2, 0, 0}, 3, 2))
		}, 3, 4),
	})
}
