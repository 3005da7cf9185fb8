package autograd_test

import (
	"fmt"
	"slices"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
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

// channelsLast returns f, an operation on images whose channels are the last axis, as one on images [n c h w].
func channelsLast(f func(v []*autograd.Variable) *autograd.Variable) func(v []*autograd.Variable) *autograd.Variable {
	return func(v []*autograd.Variable) *autograd.Variable {
		v = slices.Clone(v)
		v[0] = autograd.Permute(v[0], 0, 2, 3, 1)
		return autograd.Permute(f(v), 0, 3, 1, 2)
	}
}
