// Package extensions implements, outside goddp's module, each interface of goddp that is
// meant for that: a store, a differentiable operation, a communication hook, an optimizer,
// and an engine under the reducer.
package extensions

import (
	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
)

// double is the operation y = 2x.
type double struct{}

var _ autograd.Function = double{}

func (double) Name() string                         { return "Double" }
func (double) Shape(in []device.Shape) device.Shape { return in[0] }

func (double) Forward(c *autograd.Call) error {
	return c.Kernels.Axpby(c.Stream, c.Out, device.Accum{Alpha: 2}, c.In[0])
}

func (double) Backward(c *autograd.Call, _ int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	return c.Kernels.Axpby(c.Stream, dst, device.Accum{Alpha: 2 * acc.Alpha, Beta: acc.Beta}, g)
}
