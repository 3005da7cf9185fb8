package autograd

import "github.com/goddp/goddp/device"

// MSELoss returns the mean of the squares of pred - target, which have the same shape, as a scalar.
func MSELoss(pred, target *Variable) *Variable { return Apply(mse{}, pred, target) }

type mse struct{}

func (mse) Name() string { return "MSELoss" }

func (mse) Shape(in []device.Shape) device.Shape {
	if !in[0].Equal(in[1]) {
		panic(&device.ShapeError{Op: "MSELoss", A: in[0], B: in[1]})
	}
	return device.Shape{}
}

func (mse) Saves(_, j int) bool { return j != Output }

func (mse) Forward(c *Call) error {
	return c.kernels.MSE(c.Stream, c.Out, c.In[0], c.In[1])
}

func (mse) Backward(c *Call, i int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	if i == 1 {
		acc.Alpha = -acc.Alpha
	}
	return c.kernels.MSEGrad(c.Stream, dst, acc, g, c.In[0], c.In[1])
}

// CrossEntropyLoss returns the mean over rows of -log(softmax(logits)[label]) as a scalar. logits is
// [m n]; labels is int64 [m] (see [FromSlice]), with labels 0 to n-1. The loss of 16-bit logits is
// computed and returned in Float32.
func CrossEntropyLoss(logits, labels *Variable) *Variable {
	return Apply(&crossEntropy{dt: lossType("CrossEntropyLoss", logits, labels)}, logits, labels)
}

// lossType returns the type of the loss of CrossEntropyLoss. It panics unless labels are int64.
func lossType(op string, x, labels *Variable) device.DType {
	if dt := labels.t.DType; dt != device.Int64 {
		panic(&device.DTypeError{Op: op, Got: dt, Want: device.Int64})
	}
	if x.t.DType.Size() == 2 {
		return device.Float32
	}
	return x.t.DType
}

type crossEntropy struct {
	dt   device.DType  // the type of the loss
	sums device.Tensor // the sums of the rows: see kernels.CrossEntropy
}

func (f *crossEntropy) dtype() device.DType { return f.dt }

func (*crossEntropy) Name() string { return "CrossEntropyLoss" }

func (*crossEntropy) Shape(in []device.Shape) device.Shape {
	if len(in[0]) != 2 || !in[1].Equal(in[0][:1]) {
		panic(&device.ShapeError{Op: "CrossEntropyLoss", A: in[0], B: in[1]})
	}
	return device.Shape{}
}

func (*crossEntropy) Saves(_, j int) bool { return j != Output }

func (f *crossEntropy) Forward(c *Call) (err error) {
	if f.sums, err = c.New(device.Float64, 2, c.In[0].Shape[0]); err != nil {
		return err
	}
	return c.kernels.CrossEntropy(c.Stream, c.Out, f.sums, c.In[0], c.In[1])
}

func (f *crossEntropy) Backward(c *Call, _ int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	return c.kernels.CrossEntropyGrad(c.Stream, dst, acc, g, f.sums, c.In[0], c.In[1])
}
