package autograd

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// LayerNorm normalises x over its last axes, which have the given shape, to mean 0 and variance 1. It
// multiplies by weight and adds bias; both have that shape or are nil. eps is added to the variance.
func LayerNorm(x *Variable, shape []int, weight, bias *Variable, eps float64) *Variable {
	return normalise(&groupNorm{name: "LayerNorm", axes: axesOf(shape), p: kernels.Norm{Groups: 1, Eps: eps}}, x, weight, bias)
}

// RMSNorm divides x by the root of the mean of its squares over its last axes, which have the given
// shape. It multiplies by weight, which has that shape or is nil. eps is added to the mean.
func RMSNorm(x *Variable, shape []int, weight *Variable, eps float64) *Variable {
	return normalise(&groupNorm{name: "RMSNorm", axes: axesOf(shape), p: kernels.Norm{Groups: 1, Uncentered: true, Eps: eps}}, x, weight, nil)
}

// axesOf returns shape, and an empty one for nil, because groupNorm's nil means a GroupNorm.
func axesOf(shape []int) device.Shape {
	if shape == nil {
		return device.Shape{}
	}
	return shape
}

// AddLayerNorm returns x + y, and [LayerNorm] of this sum. If x and y have one shape, one kernel computes
// both, and otherwise both are broadcast as by [Add]. Bits and gradients are those of Add and LayerNorm.
func AddLayerNorm(x, y *Variable, shape []int, weight, bias *Variable, eps float64) (sum, normed *Variable) {
	return addNormalise(&groupNorm{name: "LayerNorm", axes: axesOf(shape), p: kernels.Norm{Groups: 1, Eps: eps}}, x, y, weight, bias)
}

// AddRMSNorm is [AddLayerNorm] with [RMSNorm] in place of LayerNorm.
func AddRMSNorm(x, y *Variable, shape []int, weight *Variable, eps float64) (sum, normed *Variable) {
	return addNormalise(&groupNorm{name: "RMSNorm", axes: axesOf(shape), p: kernels.Norm{Groups: 1, Uncentered: true, Eps: eps}}, x, y, weight, nil)
}

// addNormalise returns x + y and f of this sum. They are two operations of the graph with separate gradients, but the
// kernel of the second computes the results of both.
func addNormalise(f *groupNorm, x, y, weight, bias *Variable) (sum, normed *Variable) {
	if !x.t.Shape.Equal(y.t.Shape) || x.hasSource() || y.hasSource() {
		sum = Add(x, y)
		return sum, normalise(f, sum, weight, bias)
	}
	sum = Apply(computedLater{binary(kernels.Add)}, x, y)
	f.terms = [2]device.Tensor{x.t, y.t}
	normed = normalise(f, sum, weight, bias)
	if sum.mem.err == nil {
		sum.mem.err = normed.mem.err
	}
	return sum, normed
}

// computedLater is an operation whose result is computed by the next operation's kernel.
type computedLater struct{ binary }

func (computedLater) Forward(*Call) error { return nil }

// GroupNorm divides the channels of x [n c ...] into groups, and normalises each group of each sample
// to mean 0 and variance 1. It multiplies by weight [c] and adds bias [c]; both may be nil.
func GroupNorm(x *Variable, groups int, weight, bias *Variable, eps float64) *Variable {
	return normalise(&groupNorm{name: "GroupNorm", p: kernels.Norm{Groups: groups, Eps: eps}}, x, weight, bias)
}

// normalise applies f to x, and to weight and bias unless they are nil.
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

// parameters holds the input numbers of a normalisation's weight and bias; 0 means that there is none.
type parameters struct{ weight, bias int }

func (p *parameters) has(weight, bias bool) {
	*p = parameters{}
	if weight {
		p.weight = 1
	}
	if bias {
		p.bias = p.weight + 1
	}
}

// of returns the weight and the bias of an application, each with one axis. A missing one is the zero Tensor.
func (p *parameters) of(c *Call) (weight, bias device.Tensor) {
	if p.weight > 0 {
		weight = c.In[p.weight].Flat()
	}
	if p.bias > 0 {
		bias = c.In[p.bias].Flat()
	}
	return weight, bias
}

// check panics with a [*device.ShapeError] unless weight and bias have the given shape.
func (p *parameters) check(name string, in []device.Shape, want device.Shape) {
	for _, s := range in[1:] {
		if !s.Equal(want) {
			panic(&device.ShapeError{Op: name, A: s, B: want})
		}
	}
}

// Saves reports what the gradients read: the bias's gradient reads no operand, the weight's gradient reads x.
func (p *parameters) Saves(i, j int) bool {
	return j == 0 && (i == 0 || i == p.weight) || i == 0 && j > 0 && j == p.weight
}

// groupNorm normalises groups within a sample. A sample of LayerNorm and RMSNorm is one group, with
// channels of one element.
type groupNorm struct {
	parameters
	name string
	axes device.Shape // the last axes, over which LayerNorm normalises; nil for GroupNorm
	p    kernels.Norm

	terms          [2]device.Tensor // if set, Forward also computes c.In[0], as the sum of these terms
	mean, variance device.Tensor
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

// view returns t as [samples channels positions].
func (f *groupNorm) view(t device.Tensor) device.Tensor {
	if f.axes != nil {
		n := len(t.Shape) - len(f.axes)
		return t.Reshape(t.Shape[:n].Len(), f.axes.Len(), 1)
	}
	return byChannel(t)
}

// byChannel returns t [n c ...] as [samples channels positions].
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
	if a, b := f.terms[0], f.terms[1]; !a.IsZero() {
		f.terms = [2]device.Tensor{}
		return c.kernels.AddGroupNorm(c.Stream, f.view(c.Out), x, f.mean, f.variance, f.view(a), f.view(b), weight, bias, f.p)
	}
	return c.kernels.GroupNorm(c.Stream, f.view(c.Out), f.mean, f.variance, x, weight, bias, f.p)
}

func (f *groupNorm) recompute(c *Call) error {
	weight, bias := f.of(c)
	return c.kernels.GroupNorm(c.Stream, f.view(c.Out), f.mean, f.variance, f.view(c.In[0]), weight, bias, f.p)
}

func (f *groupNorm) Backward(c *Call, i int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	var dsts [3]device.Tensor
	var accs [3]device.Accum
	dsts[i], accs[i] = dst, acc
	return f.backwardJoint(c, dsts, accs, g)
}

// firstJoint returns 0, the index of x: the gradients of x and of the inputs after it are computed together.
func (*groupNorm) firstJoint() int { return 0 }

func (f *groupNorm) backwardJoint(c *Call, dst [3]device.Tensor, acc [3]device.Accum, g device.Tensor) error {
	x := f.view(c.In[0])
	var to kernels.NormGrads
	if !dst[0].IsZero() {
		to.X, to.AccX = f.view(dst[0]), acc[0]
	}
	if !c.addend.IsZero() {
		to.Addend = f.view(c.addend)
	}
	if i := f.parameters.weight; i > 0 && !dst[i].IsZero() {
		to.Weight, to.AccWeight = dst[i].Flat(), acc[i]
	}
	if i := f.parameters.bias; i > 0 && !dst[i].IsZero() {
		to.Bias, to.AccBias = dst[i].Flat(), acc[i]
	}
	weight, _ := f.of(c)
	return c.kernels.GroupNormGrad(c.Stream, to, f.view(g), x, f.mean, f.variance, weight, f.p)
}

func (*groupNorm) addsAddend() {}

// BatchNormOptions are the choices of [BatchNorm].
type BatchNormOptions struct {
	Eps float64 // added to the variance
	// Mean and Variance [c] are running moments. In training, BatchNorm moves them towards the
	// moments of the batch by Momentum, and adds 1 to Batches, a scalar of Int64. Otherwise it
	// normalises x by them. Either all three are set or none.
	Mean, Variance, Batches *Variable
	Momentum                float64
	// Evaluate normalises x by Mean and Variance if they are set.
	Evaluate bool
	// Peers are the ranks whose samples form one batch; nil means that only this rank's samples do.
	Peers BatchPeers
	// ChannelsLast makes x [n ... c] instead of [n c ...].
	ChannelsLast bool
	// Residual, which has x's shape, is added to the result; nil means none. ReLU then replaces negative elements by
	// 0. Neither needs an extra pass over memory.
	Residual *Variable
	ReLU     bool
}

// BatchPeers are the ranks that compute one [BatchNorm] together. All ranks enqueue the same calls in
// the same order, in the forward and in the backward pass.
type BatchPeers interface {
	// Size returns the number of ranks.
	Size() int
	// Gather sets dst [size n] to the src [n] of all ranks.
	Gather(dst, src device.Tensor) error
	// Sum replaces t by its sum over all ranks.
	Sum(t device.Tensor) error
}

// BatchNorm normalises each channel of x [n c ...] over all samples and positions. It multiplies by
// weight [c] and adds bias [c]; both may be nil. BatchNorm panics with a [*device.ShapeError] if a channel
// has only one element, which would be normalised by its own moments. Within a [Checkpoint], which runs twice,
// the running moments are updated once.
func BatchNorm(x, weight, bias *Variable, opts *BatchNormOptions) *Variable {
	o := *cmp.Or(opts, &BatchNormOptions{})
	f := &batchNorm{o: o}
	in := []*Variable{x}
	if o.Residual != nil {
		in = append(in, o.Residual)
	}
	if weight != nil {
		f.weight = len(in)
		in = append(in, weight)
	}
	if bias != nil {
		f.bias = len(in)
		in = append(in, bias)
	}
	return Apply(f, in...)
}

// The inputs of batchNorm are x and, where present, a residual, a weight and a bias.
type batchNorm struct {
	parameters
	o BatchNormOptions

	mean, variance, count, sums, mask device.Tensor // count is absent if the moments are constants
}

func (*batchNorm) Name() string { return "BatchNorm" }

func (f *batchNorm) Shape(in []device.Shape) device.Shape {
	x, rest := in[0], in[1:]
	if len(x) < 2 {
		panic(&device.ShapeError{Op: "BatchNorm", A: x, B: device.Shape{0, 0}})
	}
	if f.o.Residual != nil {
		if !rest[0].Equal(x) {
			panic(&device.ShapeError{Op: "BatchNorm", A: x, B: rest[0]})
		}
		rest = rest[1:]
	}
	z := f.sizes(x)
	if f.o.Mean != nil {
		rest = append(slices.Clone(rest), f.o.Mean.Shape(), f.o.Variance.Shape())
	}
	for _, s := range rest {
		if want := z[1:2]; !s.Equal(want) {
			panic(&device.ShapeError{Op: "BatchNorm", A: s, B: want})
		}
	}
	if f.byBatch() && (f.o.Peers == nil || f.o.Peers.Size() == 1) && z[0]*z[2] == 1 {
		panic(oneElement(x, ""))
	}
	return x
}

// oneElement is the error of a batch x with one element per channel, whose variance is 0.
func oneElement(x device.Shape, where string) error {
	return &device.ShapeError{Op: "BatchNorm", A: x, Want: "more than one element a channel in training" + where}
}

// sizes returns a tensor's numbers of samples, channels and positions. With channels last, each position is a
// sample.
func (f *batchNorm) sizes(x device.Shape) device.Shape {
	if last := len(x) - 1; f.o.ChannelsLast {
		return device.Shape{x[:last].Len(), x[last], 1}
	}
	return device.Shape{x[0], x[1], x[2:].Len()}
}

// view returns t as [samples channels positions].
func (f *batchNorm) view(t device.Tensor) device.Tensor { return t.Reshape(f.sizes(t.Shape)...) }

// byBatch reports whether x is normalised by the moments of the batch.
func (f *batchNorm) byBatch() bool { return !f.o.Evaluate || f.o.Mean == nil }

// Saves reports that the gradient of x does not read x if the moments are constants.
func (f *batchNorm) Saves(i, j int) bool {
	if i == 0 && j == 0 {
		return f.byBatch()
	}
	return f.parameters.Saves(i, j)
}

// operation returns what the kernels compute.
func (f *batchNorm) operation(c *Call) kernels.BatchNorm {
	weight, bias := f.of(c)
	return kernels.BatchNorm{
		X: f.view(c.In[0]), Mean: f.mean, Variance: f.variance, Weight: weight, Bias: bias, Eps: f.o.Eps, ReLU: f.o.ReLU, Mask: f.mask,
	}
}

func (f *batchNorm) Forward(c *Call) (err error) {
	if err := f.moments(c, f.view(c.In[0])); err != nil {
		return err
	}
	if f.o.ReLU && c.Recorded {
		if f.mask, err = c.New(device.Uint8, kernels.MaskBytes(c.Out.Len())); err != nil {
			return err
		}
	}
	var residual device.Tensor
	if f.o.Residual != nil {
		residual = f.view(c.In[1])
	}
	return c.kernels.BatchNorm(c.Stream, f.view(c.Out), residual, f.operation(c))
}

// moments computes mean and variance, and updates the running moments.
func (f *batchNorm) moments(c *Call, x device.Tensor) (err error) {
	k, s, dt, channels := c.kernels, c.Stream, kernels.StatType(x.DType), x.Shape[1]
	if !f.byBatch() {
		for _, v := range []struct{ to, from *device.Tensor }{{&f.mean, &f.o.Mean.t}, {&f.variance, &f.o.Variance.t}} {
			if *v.to, err = c.New(dt, channels); err != nil { // a copy, because the next batch changes them
				return err
			}
			if err := k.Copy(s, *v.to, *v.from); err != nil {
				return err
			}
		}
		return nil
	}
	// This rank's means, variances and count, in this order, are one row [2c+1] of the operand
	// of MergeMoments.
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

// merge replaces the moments and the count of this rank by those of all ranks.
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
	if err := c.kernels.MergeMoments(c.Stream, f.mean, f.variance, f.count, parts); err != nil {
		return err
	}
	return f.checkCount(c)
}

// checkCount panics on every rank if all ranks together have only one element per channel. A rank with several
// elements per channel need not check. The other ranks wait for the device to know the number.
func (f *batchNorm) checkCount(c *Call) error {
	x := c.In[0].Shape
	if z := f.sizes(x); z[0]*z[2] > 1 {
		return nil
	}
	if r := c.s.capturing; r != nil {
		return r.Refuse("a BatchNorm over ranks with at most one element per channel on this rank must read on the host how many the others have")
	}
	count, err := c.in(device.Float64, f.count)
	if err != nil {
		return err
	}
	n := []float64{0}
	if err := c.s.dev.CopyOut(kernels.Unbounded, c.Stream, device.HostTensor(n, device.Float64).Buf.Host(), count.Buf); err != nil {
		return err
	}
	if n[0] == 1 {
		panic(oneElement(x, ", over all ranks"))
	}
	return nil
}

// track updates the running moments, which may have another type.
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

// keepsGradient returns true: Prepare only reads the gradient of the result.
func (*batchNorm) keepsGradient() bool { return true }

// Prepare computes the gradients of weight and bias over this rank's samples, if a gradient needs them. The gradient
// of x needs their sums over all ranks, unless the moments are constants.
func (f *batchNorm) Prepare(c *Call, g device.Tensor) (err error) {
	if !(f.byBatch() && c.needs(0)) && !(f.weight > 0 && c.needs(f.weight)) && !(f.bias > 0 && c.needs(f.bias)) {
		return nil
	}
	p := f.operation(c)
	if f.sums, err = c.New(kernels.StatType(p.X.DType), 2, p.X.Shape[1]); err != nil {
		return err
	}
	return c.kernels.BatchNormGradSums(c.Stream, f.sums, f.view(g), p)
}

func (f *batchNorm) Backward(c *Call, i int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	var to kernels.BatchNormGrads
	switch {
	case i == 0:
		to.X, to.AccX = f.view(dst), acc
	case i == 1 && f.o.Residual != nil:
		to.Residual, to.AccResidual = f.view(dst), acc
	default:
		return f.grad(c, i, dst, acc)
	}
	return f.grads(c, to, g)
}

// firstJoint returns 0, the index of x: the gradients of x and of the inputs after it are computed together.
func (*batchNorm) firstJoint() int { return 0 }

func (f *batchNorm) backwardJoint(c *Call, dst [3]device.Tensor, acc [3]device.Accum, g device.Tensor) error {
	var to kernels.BatchNormGrads
	for i := len(c.In[:min(len(c.In), 3)]) - 1; i >= 0; i-- {
		switch {
		case dst[i].IsZero():
		case i == 0:
			to.X, to.AccX = f.view(dst[i]), acc[i]
		case i == 1 && f.o.Residual != nil:
			to.Residual, to.AccResidual = f.view(dst[i]), acc[i]
		default:
			if err := f.grad(c, i, dst[i], acc[i]); err != nil {
				return err
			}
		}
	}
	if to.X.IsZero() && to.Residual.IsZero() {
		return nil
	}
	return f.grads(c, to, g)
}

// grads computes the gradients of x and of the residual.
func (f *batchNorm) grads(c *Call, to kernels.BatchNormGrads, g device.Tensor) error {
	var sums device.Tensor
	if f.byBatch() && !to.X.IsZero() {
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
	return c.kernels.BatchNormGrad(c.Stream, to, f.view(g), sums, f.count, f.operation(c))
}

// grad accumulates into dst the gradient of the weight or the bias.
func (f *batchNorm) grad(c *Call, i int, dst device.Tensor, acc device.Accum) error {
	n := dst.Len()
	sum := f.sums.Flat().Range(0, n)
	if i == f.parameters.weight {
		sum = f.sums.Flat().Range(n, 2*n)
	}
	sum, err := c.in(dst.DType, sum)
	if err != nil {
		return err
	}
	return c.kernels.Axpby(c.Stream, dst.Flat(), acc, sum)
}
