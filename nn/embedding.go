package nn

import (
	"cmp"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
)

// EmbeddingOptions are the choices of [Embedding].
type EmbeddingOptions struct {
	// Padding is an id whose row starts at zero and gets no gradient: PyTorch's padding_idx. nil
	// means none.
	Padding *int
	// DType is the type of the weight; Invalid means Float32.
	DType device.DType
}

// EmbeddingLayer selects rows of its weight: see [Embedding].
type EmbeddingLayer struct {
	Weight *Parameter // [n d]

	padding int // -1 means none
}

// Embedding is a layer that maps ids [...], int64 in [0, n), to the rows [... d] of its weight. The
// weight starts normally distributed with mean 0 and standard deviation 1, as in PyTorch.
func Embedding(n, d int, opts *EmbeddingOptions) *EmbeddingLayer {
	o := *cmp.Or(opts, &EmbeddingOptions{})
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

// zeroRow returns an Init that sets one row, of width elements, to zero after init.
func zeroRow(init Init, row, width int) Init {
	return func(dev device.Device, dst device.Tensor, seed, offset uint64) error {
		if err := init(dev, dst, seed, offset); err != nil {
			return err
		}
		return dev.Kernels().Fill(dev.Compute(), dst.Range(row*width, (row+1)*width), 0)
	}
}

// Forward returns the rows that ids select.
func (l *EmbeddingLayer) Forward(ids *autograd.Variable) *autograd.Variable {
	return autograd.Embedding(l.Weight.Var(), ids, l.padding)
}

// Parameters returns "weight".
func (l *EmbeddingLayer) Parameters() []*Parameter { return []*Parameter{l.Weight} }

// Flatten is a layer that merges all axes of x [b ...] except the first: [b n].
func Flatten() Module { return flatten{} }

type flatten struct{}

func (flatten) Forward(x *autograd.Variable) *autograd.Variable { return autograd.Flatten(x, 1) }
func (flatten) Parameters() []*Parameter                        { return nil }
