package autograd_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/torchtest"
)

func twice(n int) [2]int { return [2]int{n, n} }

func convolutionCases() (cases []gradCase) {
	add := func(name string, f func(in variables) *autograd.Variable, shapes ...device.Shape) {
		cases = append(cases, gradCase{fmt.Sprintf("%s%v", name, shapes), shapes, -2, 2, f})
	}
	conv := func(p *autograd.Conv2dOptions) func(in variables) *autograd.Variable {
		return func(in variables) *autograd.Variable {
			if len(in) == 2 {
				return autograd.Conv2d(in[0], in[1], nil, p)
			}
			return autograd.Conv2d(in[0], in[1], in[2], p)
		}
	}
	add("Conv2d", conv(nil), device.Shape{2, 2, 4, 3}, device.Shape{3, 2, 2, 2}, device.Shape{3})
	add("Conv2d", conv(nil), device.Shape{2, 2, 2, 2}, device.Shape{3, 2, 1, 1})
	add("Conv2d in groups", conv(&autograd.Conv2dOptions{Stride: [2]int{2, 1}, Padding: [2]int{1, 0}, Dilation: [2]int{1, 2}, Groups: 2}),
		device.Shape{2, 4, 5, 5}, device.Shape{2, 2, 3, 2}, device.Shape{2})
	last := conv(&autograd.Conv2dOptions{Stride: [2]int{2, 1}, Padding: [2]int{1, 0}, Groups: 2, ChannelsLast: true})
	add("Conv2d with channels last", last, device.Shape{2, 5, 5, 4}, device.Shape{2, 2, 3, 2}, device.Shape{2})
	add("Conv2d with channels last", last, device.Shape{2, 2, 2, 4}, device.Shape{2, 2, 1, 1})
	window := autograd.Pool2dOptions{Stride: twice(1), Padding: twice(1), ExcludePadding: true}
	add("MaxPool2d", func(in variables) *autograd.Variable { return autograd.MaxPool2d(in[0], twice(2), &window) }, device.Shape{2, 2, 3, 4})
	add("AvgPool2d", func(in variables) *autograd.Variable {
		return autograd.AvgPool2d(in[0], twice(2), &window)
	}, device.Shape{2, 2, 3, 4})
	add("AdaptiveAvgPool2d", func(in variables) *autograd.Variable { return autograd.AdaptiveAvgPool2d(in[0], 2, 3, nil) }, device.Shape{2, 2, 3, 4})
	return cases
}

// Convolutions, pooling and their gradients equal PyTorch's for random shapes.
func TestConvolutionParityWithPyTorch(t *testing.T) {
	testkit.Long(t)
	rng := rand.New(rand.NewPCG(5, 6))
	var cases []torchtest.Case
	two := func(least, most int) [2]int {
		return [2]int{least + rng.IntN(most-least+1), least + rng.IntN(most-least+1)}
	}
	list := func(v [2]int) string { return fmt.Sprintf("(%d, %d)", v[0], v[1]) }
	batch := func() int {
		if rng.IntN(12) == 0 {
			return 0
		}
		return 1 + rng.IntN(3)
	}
	tolerance := func(dt device.DType) float64 {
		return map[device.DType]float64{device.Float32: 1e-4, device.Float64: 1e-10}[dt]
	}
	for n := range randomShapes() {
		p := &autograd.Conv2dOptions{Stride: two(1, 3), Padding: two(0, 2), Dilation: two(1, 2), Groups: 1 + rng.IntN(3)}
		kernel := two(1, 4)
		if n%4 == 0 {
			p.Stride, p.Padding, kernel = twice(1), twice(0), twice(1)
		}
		in, out := 1+rng.IntN(3), 1+rng.IntN(3)
		size := [2]int{}
		for i := range size { // the kernel fits
			size[i] = max(p.Dilation[i]*(kernel[i]-1)+1-2*p.Padding[i], 1) + rng.IntN(7)
		}
		x, w := []int{batch(), in * p.Groups, size[0], size[1]}, []int{out * p.Groups, in, kernel[0], kernel[1]}
		c := torchtest.Case{
			Name: fmt.Sprintf("Conv2d %d of %v by %v, %+v", n, x, w, p), DType: randomType(n), Tolerance: tolerance(randomType(n)),
			In:   []torchtest.Input{randomInput(rng, -2, 2, x...), randomInput(rng, -2, 2, w...)},
			Expr: fmt.Sprintf("F.conv2d(x[0], x[1], None, %s, %s, %s, %d)", list(p.Stride), list(p.Padding), list(p.Dilation), p.Groups),
			Go:   func(v []*autograd.Variable) *autograd.Variable { return autograd.Conv2d(v[0], v[1], nil, p) },
		}
		if rng.IntN(2) == 0 {
			c.In = append(c.In, randomInput(rng, -2, 2, w[0]))
			c.Expr = fmt.Sprintf("F.conv2d(x[0], x[1], x[2], %s, %s, %s, %d)", list(p.Stride), list(p.Padding), list(p.Dilation), p.Groups)
			c.Go = func(v []*autograd.Variable) *autograd.Variable { return autograd.Conv2d(v[0], v[1], v[2], p) }
		}
		if p.ChannelsLast = rng.IntN(2) == 0; p.ChannelsLast {
			c.Go = channelsLast(c.Go)
		}
		cases = append(cases, c)
	}
	for n := range 3 * randomShapes() {
		kernel := two(1, 4)
		w := &autograd.Pool2dOptions{Stride: two(1, 3), Dilation: twice(1), Ceil: rng.IntN(2) == 0}
		if n%3 == 0 {
			w.Dilation = two(1, 2)
		}
		size := [2]int{}
		for i := range size {
			w.Padding[i] = rng.IntN(kernel[i]/2 + 1)
			size[i] = max(w.Dilation[i]*(kernel[i]-1)+1-2*w.Padding[i], 1) + rng.IntN(7)
			if w.Dilation[i] > 1 { // PyTorch reads out of bounds if a window contains no element of the image
				size[i] += 2 * w.Padding[i]
			}
		}
		x := []int{batch(), 1 + rng.IntN(3), size[0], size[1]}
		c := torchtest.Case{DType: randomType(n), Tolerance: tolerance(randomType(n)), In: []torchtest.Input{randomInput(rng, -2, 2, x...)}}
		ceil := map[bool]string{true: "True", false: "False"}
		switch n % 3 {
		case 0:
			c.Name = "MaxPool2d"
			c.Expr = fmt.Sprintf("F.max_pool2d(x[0], %s, %s, %s, %s, %s)", list(kernel), list(w.Stride), list(w.Padding), list(w.Dilation), ceil[w.Ceil])
			c.Go = func(v []*autograd.Variable) *autograd.Variable { return autograd.MaxPool2d(v[0], kernel, w) }
		case 1:
			w.ExcludePadding = rng.IntN(2) == 0
			c.Name = "AvgPool2d"
			c.Expr = fmt.Sprintf("F.avg_pool2d(x[0], %s, %s, %s, %s, %s)", list(kernel), list(w.Stride), list(w.Padding), ceil[w.Ceil], ceil[!w.ExcludePadding])
			c.Go = func(v []*autograd.Variable) *autograd.Variable { return autograd.AvgPool2d(v[0], kernel, w) }
		case 2:
			out := two(1, 9)
			c.Name = "AdaptiveAvgPool2d"
			c.Expr = fmt.Sprintf("F.adaptive_avg_pool2d(x[0], %s)", list(out))
			c.Go = func(v []*autograd.Variable) *autograd.Variable {
				return autograd.AdaptiveAvgPool2d(v[0], out[0], out[1], w)
			}
		}
		if w.ChannelsLast = rng.IntN(2) == 0; w.ChannelsLast {
			c.Go = channelsLast(c.Go)
		}
		c.Name = fmt.Sprintf("%s %d of %v, %s, channels last %v", c.Name, n, x, c.Expr, w.ChannelsLast)
		cases = append(cases, c)
	}
	torchtest.Check(t, cases)
}

// channelsLast returns f, an operation on images whose channels are the last axis, as one on images [n c h w].
func channelsLast(f func(v []*autograd.Variable) *autograd.Variable) func(v []*autograd.Variable) *autograd.Variable {
	return func(v []*autograd.Variable) *autograd.Variable {
		v = slices.Clone(v)
		v[0] = autograd.Permute(v[0], 0, 2, 3, 1)
		return autograd.Permute(f(v), 0, 3, 1, 2)
	}
}
