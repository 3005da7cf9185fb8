package autograd

import (
	"fmt"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// LayerNorm normalises x over its last axes, which are of the given shape: to a mean of 0
// and a variance of 1, times weight plus bias, both of that shape or nil. eps is added to
// the variance.
func LayerNorm(x *Variable, shape []int, weight, bias *Variable, eps float64) *Variable {
	return normalise(&groupNorm{name: "LayerNorm", axes: shape, p: kernels.Norm{Groups: 1, Eps: eps}}, x, weight, bias)
}

// RMSNorm divides x by the root of the mean of its squares over its last axes, which are of
// the given shape, times weight, of that shape or nil. eps is added to the mean.
func RMSNorm(x *Variable, shape []int, weight *Variable, eps float64) *Variable {
	return normalise(&groupNorm{name: "RMSNorm", axes: shape, p: kernels.Norm{Groups: 1, Uncentered: true, Eps: eps}}, x, weight, nil)
}

// GroupNorm normalises x [n c ...] over each of so many groups of channels of each sample,
// times weight [c] plus bias [c], both of which may be nil.
func GroupNorm(x *Variable, groups int, weight, bias *Variable, eps float64) *Variable {
	return normalise(&groupNorm{name: "GroupNorm", p: kernels.Norm{Groups: groups, Eps: eps}}, x, weight, bias)
}

// normalise applies f, of a weight and a bias if there are any.
func normalise(f interface {
	Function
	has(weight, bias bool)
}, x, weight, bias *Variable) *Variable {
	in := []*Variable{x}
	for _, v := range []*Variable{weight, bias} {
		if v != nil {
			in = append(in, v)
		}
	}
	f.has(weight != nil, bias != nil)
	return Apply(f, in...)
}

// parameters says which operands of a normalisation are its weight and its bias.
type parameters struct{ weight, bias int } // 0: not there

func (p *parameters) has(weight, bias bool) {
	*p = parameters{}
	if weight {
		p.weight = 1
	}
	if bias {
		p.bias = p.weight + 1
	}
}

// of are the weight and the bias of an application, as far as they are there, by channel.
func (p *parameters) of(c *Call) (weight, bias device.Tensor) {
	if p.weight > 0 {
		weight = c.In[p.weight].Flat()
	}
	if p.bias > 0 {
		bias = c.In[p.bias].Flat()
	}
	return weight, bias
}

// check panics unless weight and bias are of the given shape.
func (p *parameters) check(name string, in []device.Shape, want device.Shape) {
	for _, s := range in[1:] {
		if !s.Equal(want) {
			panic(&device.ShapeError{Op: name, A: s, B: want})
		}
	}
}

// Saves: the gradient for the bias depends on no operand, that for the weight on x.
func (p *parameters) Saves(i, j int) bool {
	return j == 0 && (i == 0 || i == p.weight) || i == 0 && j > 0 && j == p.weight
}

// grad accumulates the gradient of the weight, or of the bias, that sums [2 c] has.
func (p *parameters) grad(c *Call, i int, dst device.Tensor, acc device.Accum, sums device.Tensor) error {
	n := dst.Len()
	sum := sums.Flat().Range(0, n)
	if i == p.weight {
		sum = sums.Flat().Range(n, 2*n)
	}
	sum, err := c.in(dst.DType, sum)
	if err != nil {
		return err
	}
	return c.kernels.Axpby(c.Stream, dst.Flat(), acc, sum)
}

// groupNorm is a normalisation of groups within a sample. LayerNorm's and RMSNorm's samples
// have one group, of channels of one element.
type groupNorm struct {
	parameters
	name string
	axes device.Shape // the last axes; nil: GroupNorm's
	p    kernels.Norm

	mean, variance, sums device.Tensor
}

func (f *groupNorm) Name() string { return f.name }

func (f *groupNorm) Shape(in []device.Shape) device.Shape {
	x := in[0]
	if f.axes != nil {
		if len(f.axes) == 0 || len(x) < len(f.axes) || !x[len(x)-len(f.axes):].Equal(f.axes) {
			panic(&device.ShapeError{Op: f.name, A: x, B: f.axes})
		}
		f.check(f.name, in, f.axes)
		return x
	}
	if len(x) < 2 || f.p.Groups <= 0 || x[1]%f.p.Groups != 0 {
		panic(&device.ShapeError{Op: fmt.Sprintf("%s of %d groups", f.name, f.p.Groups), A: x, B: device.Shape{0, f.p.Groups}})
	}
	f.check(f.name, in, x[1:2])
	return x
}

// view is t as [samples channels positions].
func (f *groupNorm) view(t device.Tensor) device.Tensor {
	if f.axes != nil {
		n := len(t.Shape) - len(f.axes)
		return t.Reshape(t.Shape[:n].Len(), f.axes.Len(), 1)
	}
	return byChannel(t)
}

// byChannel is t [n c ...] as [samples channels positions].
func byChannel(t device.Tensor) device.Tensor {
	return t.Reshape(t.Shape[0], t.Shape[1], t.Shape[2:].Len())
}

func (f *groupNorm) Forward(c *Call) (err error) {
	x := f.view(c.In[0])
	n := x.Shape[0] * f.p.Groups
	if !f.p.Uncentered {
		if f.mean, err = c.New(kernels.StatType(x.DType), n); err != nil {
			return err
		}
	}
	if f.variance, err = c.New(kernels.StatType(x.DType), n); err != nil {
		return err
	}
	weight, bias := f.of(c)
	return c.kernels.GroupNorm(c.Stream, f.view(c.Out), f.mean, f.variance, x, weight, bias, f.p)
}

// Prepare computes the gradients for weight and bias, which are found together.
func (f *groupNorm) Prepare(c *Call, g device.Tensor) (err error) {
	if len(c.In) == 1 {
		return nil
	}
	x := f.view(c.In[0])
	if f.sums, err = c.New(kernels.StatType(x.DType), 2, x.Shape[1]); err != nil {
		return err
	}
	return c.kernels.NormGradSums(c.Stream, f.sums, f.view(g), x, f.mean, f.variance, f.p)
}

func (f *groupNorm) Backward(c *Call, i int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	if i > 0 {
		return f.grad(c, i, dst, acc, f.sums)
	}
	weight, _ := f.of(c)
	return c.kernels.GroupNormGrad(c.Stream, f.view(dst), acc, f.view(g), f.view(c.In[0]), f.mean, f.variance, weight, f.p)
}

// BatchNormOptions are the choices of [BatchNorm].
type BatchNormOptions struct {
	Eps float64 // added to the variance
	// Mean and Variance [c] are running moments: in training moved towards those of the
	// batch, by Momentum, and else what x is normalised by. Batches, a scalar of Int64,
	// counts the former. They are there all three, or none of them.
	Mean, Variance, Batches *Variable
	Momentum                float64
	// Evaluate has x normalised by Mean and Variance. Without them it is by the batch.
	Evaluate bool
	// Peers are the ranks whose samples are one batch, nil for this one alone.
	Peers BatchPeers
}

// BatchPeers are the ranks that compute one [BatchNorm] together. Their calls are enqueued
// in one order on all ranks, in the forward and in the backward pass.
type BatchPeers interface {
	// Size is the number of ranks.
	Size() int
	// Gather sets dst [size n] to what the ranks have in src [n].
	Gather(dst, src device.Tensor) error
	// Sum adds t up over the ranks.
	Sum(t device.Tensor) error
}

// BatchNorm normalises each channel of x [n c ...] over all samples and positions, times
// weight [c] plus bias [c], both of which may be nil. It panics with a [*device.ShapeError]
// where a batch is to be normalised by itself that has one element a channel. A [Checkpoint]
// moves the running moments once.
func BatchNorm(x, weight, bias *Variable, o BatchNormOptions) *Variable {
	return normalise(&batchNorm{o: o}, x, weight, bias)
}

type batchNorm struct {
	parameters
	o BatchNormOptions

	mean, variance, count, sums device.Tensor // count is not there where the moments are constants
}

func (*batchNorm) Name() string { return "BatchNorm" }

func (f *batchNorm) Shape(in []device.Shape) device.Shape {
	x := in[0]
	if len(x) < 2 {
		panic(&device.ShapeError{Op: "BatchNorm", A: x, B: device.Shape{0, 0}})
	}
	f.check("BatchNorm", in, x[1:2])
	if f.o.Mean != nil {
		f.check("BatchNorm", []device.Shape{x, f.o.Mean.Shape(), f.o.Variance.Shape()}, x[1:2])
	}
	if f.byBatch() && f.o.Peers == nil && x[0]*x[2:].Len() == 1 {
		panic(&device.ShapeError{Op: "BatchNorm of a batch with one element a channel", A: x, B: device.Shape{2, x[1]}})
	}
	return x
}

// byBatch tells whether the moments are the batch's.
func (f *batchNorm) byBatch() bool { return !f.o.Evaluate || f.o.Mean == nil }

// Saves: the gradient for x does not depend on x where the moments are constants.
func (f *batchNorm) Saves(i, j int) bool {
	if i == 0 && j == 0 {
		return f.byBatch()
	}
	return f.parameters.Saves(i, j)
}

func (f *batchNorm) Forward(c *Call) error {
	x := byChannel(c.In[0])
	if err := f.moments(c, x); err != nil {
		return err
	}
	weight, bias := f.of(c)
	return c.kernels.BatchNorm(c.Stream, byChannel(c.Out), x, f.mean, f.variance, weight, bias, f.o.Eps)
}

// moments finds mean and variance, and moves the running ones.
func (f *batchNorm) moments(c *Call, x device.Tensor) (err error) {
	k, s, dt, channels := c.kernels, c.Stream, kernels.StatType(x.DType), x.Shape[1]
	if !f.byBatch() {
		for _, v := range []struct{ to, from *device.Tensor }{{&f.mean, &f.o.Mean.t}, {&f.variance, &f.o.Variance.t}} {
			if *v.to, err = c.New(dt, channels); err != nil { // a copy: the next batch moves them
				return err
			}
			if err := k.Copy(s, *v.to, *v.from); err != nil {
				return err
			}
		}
		return nil
	}
	// This rank's means, variances and count are one row [2c+1] of what MergeMoments takes,
	// in this order.
	parts, err := c.New(dt, 2*channels+1)
	if err != nil {
		return err
	}
	f.mean, f.variance, f.count = parts.Range(0, channels), parts.Range(channels, 2*channels), parts.Range(2*channels, 2*channels+1)
	if err := k.Moments(s, f.mean, f.variance, x); err != nil {
		return err
	}
	if err := k.Fill(s, f.count, float64(x.Shape[0]*x.Shape[2])); err != nil {
		return err
	}
	if f.o.Peers != nil {
		if err := f.merge(c, parts, channels); err != nil {
			return err
		}
	}
	if f.o.Mean == nil || f.o.Evaluate || c.Repeated {
		return nil
	}
	return f.track(c)
}

// merge has the moments, and the count, be those of all ranks.
func (f *batchNorm) merge(c *Call, ownParts device.Tensor, channels int) error {
	parts, err := c.New(ownParts.DType, f.o.Peers.Size(), ownParts.Len())
	if err != nil {
		return err
	}
	if err := f.o.Peers.Gather(parts, ownParts); err != nil {
		return err
	}
	all, err := c.New(ownParts.DType, 2*channels+1)
	if err != nil {
		return err
	}
	f.mean, f.variance, f.count = all.Range(0, channels), all.Range(channels, 2*channels), all.Range(2*channels, 2*channels+1)
	return c.kernels.MergeMoments(c.Stream, f.mean, f.variance, f.count, parts)
}

// track moves the running moments, which may be of another type.
func (f *batchNorm) track(c *Call) error {
	to := [2]device.Tensor{f.o.Mean.t, f.o.Variance.t}
	var from [3]device.Tensor
	for i, t := range []device.Tensor{f.mean, f.variance, f.count} {
		var err error
		if from[i], err = c.in(to[0].DType, t); err != nil {
			return err
		}
	}
	for _, v := range []*Variable{f.o.Mean, f.o.Variance, f.o.Batches} {
		v.BumpVersion()
	}
	return c.kernels.TrackMoments(c.Stream, to[0], to[1], f.o.Batches.t, from[0], from[1], from[2], f.o.Momentum)
}

// Prepare computes the gradients for weight and bias: those of this rank's samples. What the
// gradient for x needs of them is of all ranks.
func (f *batchNorm) Prepare(c *Call, g device.Tensor) (err error) {
	x := byChannel(c.In[0])
	if f.sums, err = c.New(kernels.StatType(x.DType), 2, x.Shape[1]); err != nil {
		return err
	}
	return c.kernels.NormGradSums(c.Stream, f.sums, byChannel(g), x, f.mean, f.variance, kernels.Norm{Eps: f.o.Eps})
}

func (f *batchNorm) Backward(c *Call, i int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	if i > 0 {
		return f.grad(c, i, dst, acc, f.sums)
	}
	var sums device.Tensor
	if f.byBatch() {
		sums = f.sums
		if f.o.Peers != nil {
			var err error
			if sums, err = c.New(f.sums.DType, f.sums.Shape...); err != nil {
				return err
			}
			if err := c.kernels.Copy(c.Stream, sums, f.sums); err != nil {
				return err
			}
			if err := f.o.Peers.Sum(sums); err != nil {
				return err
			}
		}
	}
	weight, _ := f.of(c)
	return c.kernels.BatchNormGrad(c.Stream, byChannel(dst), acc, byChannel(g), byChannel(c.In[0]), f.mean, f.variance, weight, sums, f.count, f.o.Eps)
}
