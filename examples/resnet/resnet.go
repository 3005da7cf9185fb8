package main

import (
	"fmt"
	"math"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
)

// config holds the sizes of a model.
type config struct {
	depths  [4]int // the number of blocks in each stage
	width   int    // the number of channels of the first stage's narrow convolutions
	classes int
}

// models are torchvision's ResNets of bottlenecks.
var models = map[string][4]int{"50": {3, 4, 6, 3}, "101": {3, 4, 23, 3}, "152": {3, 8, 36, 3}}

// resNet is a ResNet of bottlenecks (He et al., 2015; with the stride in the 3 × 3 convolution, as in
// torchvision). Its parameters and buffers have the names of torchvision's ResNet. Images are [n h w 3].
type resNet struct {
	nn.Container
	conv   *nn.ConvLayer
	norm   *nn.BatchNormLayer
	pool   nn.Module
	stages nn.Module
	mean   nn.Module
	fc     *nn.LinearLayer
}

func newResNet(c config) *resNet {
	m := &resNet{pool: nn.MaxPool2d(3, &nn.PoolOptions{Stride: 2, Padding: 1, ChannelsLast: true})}
	m.conv = nn.Add(&m.Container, "conv1", convolution(3, c.width, 7, 2))
	m.norm = nn.Add(&m.Container, "bn1", normalization(c.width, true))
	in := c.width
	var stages []nn.Module
	for i, depth := range c.depths {
		var blocks []nn.Module
		for j := range depth {
			stride := 1
			if i > 0 && j == 0 {
				stride = 2
			}
			blocks = append(blocks, newBottleneck(in, c.width<<i, stride))
			in = 4 * (c.width << i)
		}
		stages = append(stages, nn.Add(&m.Container, fmt.Sprint("layer", i+1), nn.Sequential(blocks...)))
	}
	m.stages = nn.Sequential(stages...)
	m.mean = nn.AdaptiveAvgPool2d(1, 1, &nn.PoolOptions{ChannelsLast: true})
	m.fc = nn.Add(&m.Container, "fc", nn.Linear(in, c.classes, nil))
	return m
}

// Forward returns the logits [n classes] of images x [n h w 3].
func (m *resNet) Forward(x *autograd.Variable) *autograd.Variable {
	x = m.pool.Forward(m.norm.Forward(m.conv.Forward(x)))
	x = m.mean.Forward(m.stages.Forward(x))
	return m.fc.Forward(autograd.Reshape(x, x.Shape()[0], -1))
}

// bottleneck is a block of three convolutions whose result is added to its input.
type bottleneck struct {
	nn.Container
	conv1, conv2, conv3 *nn.ConvLayer
	norm1, norm2, norm3 *nn.BatchNormLayer
	downsample          *nn.Sequence // nil if the input has the result's shape
}

func newBottleneck(in, width, stride int) *bottleneck {
	b, out := &bottleneck{}, 4*width
	b.conv1 = nn.Add(&b.Container, "conv1", convolution(in, width, 1, 1))
	b.norm1 = nn.Add(&b.Container, "bn1", normalization(width, true))
	b.conv2 = nn.Add(&b.Container, "conv2", convolution(width, width, 3, stride))
	b.norm2 = nn.Add(&b.Container, "bn2", normalization(width, true))
	b.conv3 = nn.Add(&b.Container, "conv3", convolution(width, out, 1, 1))
	b.norm3 = nn.Add(&b.Container, "bn3", normalization(out, true))
	if stride != 1 || in != out {
		b.downsample = nn.Add(&b.Container, "downsample", nn.Sequential(convolution(in, out, 1, stride), normalization(out, false)))
	}
	return b
}

func (b *bottleneck) Forward(x *autograd.Variable) *autograd.Variable {
	y := b.norm1.Forward(b.conv1.Forward(x))
	y = b.norm2.Forward(b.conv2.Forward(y))
	y = b.conv3.Forward(y)
	if b.downsample != nil {
		x = b.downsample.Forward(x)
	}
	return b.norm3.ForwardResidual(y, x)
}

// convolution makes a layer with torchvision's initial values.
func convolution(in, out, kernel, stride int) *nn.ConvLayer {
	l := nn.Conv2d(in, out, kernel, &nn.ConvOptions{Stride: stride, Padding: kernel / 2, NoBias: true, ChannelsLast: true})
	std := math.Sqrt(2 / float64(out*kernel*kernel))
	l.Weight = nn.NewUnplacedParameter("weight", nn.Normal(0, std), device.Float32, out, in, kernel, kernel)
	return l
}

func normalization(channels int, relu bool) *nn.BatchNormLayer {
	return nn.BatchNorm2d(channels, &nn.NormOptions{ChannelsLast: true, ReLU: relu})
}
