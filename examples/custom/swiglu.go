package main

import (
	_ "embed"
	"math"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
)

//go:embed swiglu.cu
var source string

var (
	module   = device.NewModule("swiglu.cu", source)
	forward  = module.Kernel("swiglu", "y[... n] x[... 2n]", swiglu[float32], swiglu[float64])
	backward = module.Kernel("swiglu_grad", "dx[... 2n] g[... n] x[... 2n]", swigluGrad[float32], swigluGrad[float64])
)

// SwiGLU computes a·sigmoid(a)·b, where a is the first half of the last axis and b the second.
type SwiGLU struct{}

func (SwiGLU) Name() string { return "SwiGLU" }

func (SwiGLU) Shape(in []device.Shape) device.Shape {
	last := len(in[0]) - 1
	if last < 0 || in[0][last]%2 != 0 {
		panic(&device.ShapeError{Op: "SwiGLU", A: in[0], B: device.Shape{2}})
	}
	return append(append(device.Shape{}, in[0][:last]...), in[0][last]/2)
}

func (SwiGLU) Forward(c *autograd.Call) error {
	n, elements := c.Out.Shape[len(c.Out.Shape)-1], c.Out.Len()
	return c.Kernels.Launch(c.Stream, forward, device.Flat(elements), c.Out, c.In[0], n, elements)
}

func (SwiGLU) Backward(c *autograd.Call, _ int, dx device.Tensor, acc device.Accum, g device.Tensor) error {
	n, elements := g.Shape[len(g.Shape)-1], g.Len()
	return c.Kernels.Launch(c.Stream, backward, device.Flat(elements), dx, acc, g, c.In[0], n, elements)
}

// The kernels on the CPU; those on a GPU are in swiglu.cu.

func swiglu[T float32 | float64](y, x []T, n, elements int) {
	for i := range elements {
		a, b := x[i/n*2*n+i%n], x[i/n*2*n+n+i%n]
		y[i] = a / (1 + T(math.Exp(float64(-a)))) * b
	}
}

func swigluGrad[T float32 | float64](dx []T, acc device.Accum, g, x []T, n, elements int) {
	for i := range elements {
		at := i/n*2*n + i%n
		a, b := x[at], x[at+n]
		s := 1 / (1 + T(math.Exp(float64(-a))))
		device.Accumulate(&dx[at], acc, g[i]*b*s*(1+a*(1-s)))
		device.Accumulate(&dx[at+n], acc, g[i]*a*s)
	}
}
