package nn

import (
	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
)

// EmbeddingOptions are the choices of [Embedding]; the zero value is the good default.
type EmbeddingOptions struct {
	// Padding is an id whose row begins at zero and gets no gradient; nil is none. It is
	// PyTorch's padding_idx.
	Padding *int
	// DType is the weight's type; Invalid is Float32.
	DType device.DType
}

// EmbeddingLayer looks rows up: see [Embedding].
type EmbeddingLayer struct {
	Weight *Parameter // [n d]

	padding int // -1: none
}

// Embedding is a layer with ids [...], int64 within 0 to n-1, to rows [... d] of its
// weight, which begins with numbers of mean 0 and deviation 1, as PyTorch's does. opts is
// nothing, or one.
func Embedding(n, d int, opts ...EmbeddingOptions) *EmbeddingLayer {
	var o EmbeddingOptions
	if len(opts) > 0 {
		o = opts[0]
	}
	if o.DType == device.Invalid {
		o.DType = device.Float32
	}
	l := &EmbeddingLayer{padding: -1}
	init := Normal(0, 1)
	if o.Padding != nil {
		l.padding = *o.Padding
		if l.padding < 0 || l.padding >= n {
			panic(&device.IndexError{Op: "Embedding with padding", Index: int64(l.padding), Limit: n})
		}
		init = zeroRow(init, l.padding, d)
	}
	l.Weight = NewUnplacedParameter("weight", init, o.DType, n, d)
	return l
}

// zeroRow is init with a row of width elements that is zero.
func zeroRow(init Init, row, width int) Init {
	return func(dev device.Device, dst device.Tensor, seed, offset uint64) error {
		if err := init(dev, dst, seed, offset); err != nil {
			return err
		}
		return dev.Kernels().Fill(dev.Compute(), dst.Range(row*width, (row+1)*width), 0)
	}
}

// Forward is the rows at ids.
func (l *EmbeddingLayer) Forward(ids *autograd.Variable) *autograd.Variable {
	return autograd.EmbeddingWithPadding(l.Weight.Var(), ids, l.padding)
}

// Parameters are "weight".
func (l *EmbeddingLayer) Parameters() []*Parameter { return []*Parameter{l.Weight} }

// Flatten is a layer that makes the axes of x [b ...] but the first one: [b n].
func Flatten() Module { return flatten{} }

type flatten struct{}

func (flatten) Forward(x *autograd.Variable) *autograd.Variable { return autograd.Flatten(x, 1) }
func (flatten) Parameters() []*Parameter                        { return nil }
