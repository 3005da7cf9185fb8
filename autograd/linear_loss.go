package autograd

import (
	"fmt"
	"math"
	"math/bits"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// LinearLossOptions are the choices of [LinearCrossEntropyLoss].
type LinearLossOptions struct {
	// Overwrite lets the loss store the gradient of x in the memory of x, which the backward pass then frees. The
	// program must not use x, or a variable that shares its memory, again. The loss leaves x unchanged if x needs no
	// gradient, is not a result of the current step and scope, or shares the memory of a larger variable.
	Overwrite bool
	// IgnoreIndex is the label of rows that the loss ignores; nil means none. PyTorch's default is -100. The mean is
	// over the other rows, and NaN if there are none; its gradients are then 0. See [LinearCrossEntropyLoss].
	IgnoreIndex *int64
	// MaxRows is the largest number of rows that are not ignored; 0 means all. It matters on a GPU, where the host
	// does not see the labels: the loss computes MaxRows rows, so that a captured step may have any number of labels
	// up to it. If there are more, the loss is NaN on a GPU, and an error on the CPU.
	MaxRows int
	// Sum makes the loss the sum of the rows' losses instead of their mean: PyTorch's reduction "sum".
	Sum bool
}

// LinearCrossEntropyLoss is [CrossEntropyLoss] of the logits x·wᵀ: x [... k], w [n k], labels int64 [...],
// the result a scalar. If there are many classes n, as in a vocabulary, logits and their gradient take more
// memory than all other results of a model. So the forward pass divides the rows into parts. For one part after
// the other it computes the logits, the loss, and the gradients of x and w. The backward pass only scales these
// gradients. A part has about 2²⁴ logits, or a twentieth of the rows if that is more.
//
// The gradient of w is the sum over at most 20 parts of the rows, in w's type.
//
// Ignored rows take no part in any of that: the loss copies the other rows of x together first. Their number is the
// number of labels on the CPU, and MaxRows on a GPU.
func LinearCrossEntropyLoss(x, w, labels *Variable, opts *LinearLossOptions) *Variable {
	f := &linearLoss{s: x.s, sums: lossType("LinearCrossEntropyLoss", x, labels)}
	if opts != nil {
		f.ignored, f.maxRows, f.isSum = opts.IgnoreIndex, opts.MaxRows, opts.Sum
		if opts.Overwrite {
			f.spent = x.mem
		}
	}
	f.needed = [...]bool{x.node != nil, w.node != nil}
	return Apply(f, x, w, labels)
}

// A part of the logits has about lossElements elements, enough to keep a device busy, or more if there would be
// more than lossParts parts. The number of rows of each part except the last is a multiple of lossRows.
const (
	lossElements = 1 << 24
	lossParts    = 20
	lossRows     = 128
)

// linearLoss computes the gradients for the sum of the rows' losses rather than their mean, so that their
// elements are not too small for Float16.
type linearLoss struct {
	s       *state
	sums    device.DType     // the type of the loss
	spent   *block           // the memory of x if the gradient for x may be stored there, otherwise nil
	needed  [2]bool          // whether x and w needed a gradient when the function was applied
	grads   [2]device.Tensor // the gradients for x, and for w
	ignored *int64
	maxRows int
	isSum   bool
	count   device.Tensor // the number of rows that are not ignored, and at least 1; absent if no label is ignored
	shrink  float64       // a factor of the gradient for w: the sum over all rows may be too large for Float16
}

func (f *linearLoss) dtype() device.DType { return f.sums }

func (*linearLoss) Name() string { return "LinearCrossEntropyLoss" }

func (*linearLoss) Shape(in []device.Shape) device.Shape {
	x, w, labels := in[0], in[1], in[2]
	if len(x) == 0 || len(w) != 2 || x[len(x)-1] != w[1] {
		panic(&device.ShapeError{Op: "LinearCrossEntropyLoss", A: x, B: w})
	}
	if !labels.Equal(x[:len(x)-1]) {
		panic(&device.ShapeError{Op: "LinearCrossEntropyLoss", A: x, B: labels})
	}
	return device.Shape{}
}

func (*linearLoss) Saves(_, _ int) bool { return false }

func (f *linearLoss) Forward(c *Call) (err error) {
	x, w, labels := rows(c.In[0]), c.In[1], c.In[2].Flat()
	for i, of := range []device.Tensor{x, w} {
		switch {
		case !c.Recorded || !f.needed[i]:
		case i == 0 && f.overwrites(x):
			f.spent.version++ // no other gradient can read x from here on
			c.node.saved = append(c.node.saved, f.spent)
			f.grads[i] = x
		default:
			if f.grads[i], err = c.New(of.DType, of.Shape...); err != nil {
				return err
			}
		}
	}
	if f.ignored != nil {
		return f.selected(c, x, w, labels)
	}
	return f.all(c, x, w, labels, f.grads[0])
}

// selected copies the rows that are not ignored together, computes their loss, and writes their gradients to the rows
// that they have in x.
func (f *linearLoss) selected(c *Call, x, w, labels device.Tensor) error {
	r, err := f.rowsLeft(labels, w.Shape[0])
	if err != nil {
		return err
	}
	if f.count, err = c.New(f.sums, 2); err != nil {
		return err
	}
	indices, err := f.s.alloc(device.Int64, device.Shape{2, r})
	if err != nil {
		return err
	}
	defer f.s.dev.Free(indices.Buf)
	few, err := f.s.alloc(x.DType, device.Shape{1, r, x.Shape[1]})
	if err != nil {
		return err
	}
	defer f.s.dev.Free(few.Buf)
	index, selected := indices.Range(0, r), indices.Range(r, 2*r)
	if err := c.kernels.SelectLabels(c.Stream, index, selected, f.count, labels, *f.ignored); err != nil {
		return err
	}
	if err := c.kernels.Gather(c.Stream, few, x.Reshape(1, x.Shape[0], x.Shape[1]), index); err != nil {
		return err
	}
	var dx device.Tensor
	if !f.grads[0].IsZero() {
		dx = rows(few)
	}
	if err := f.all(c, rows(few), w, selected, dx); err != nil || dx.IsZero() {
		return err
	}
	return c.kernels.ScatterAdd(c.Stream, f.grads[0].Reshape(1, x.Shape[0], x.Shape[1]), device.Store, few, index, -1)
}

// rowsLeft returns the number of rows that the loss computes if labels are ignored. n is the number of classes.
func (f *linearLoss) rowsLeft(labels device.Tensor, n int) (int, error) {
	m := labels.Len()
	most := f.maxRows
	if most <= 0 || most > m {
		most = m
	}
	if labels.Buf.Host() == nil {
		return most, nil
	}
	count := 0
	for i, l := range device.Elements[int64](labels) {
		if l == *f.ignored {
			continue
		}
		if l < 0 || l >= int64(n) {
			panic(&device.IndexError{Op: f.Name(), At: i, Index: l, Limit: n, Label: true})
		}
		count++
	}
	if count > most {
		return 0, fmt.Errorf("autograd: LinearCrossEntropyLoss: %d rows are not ignored, want at most MaxRows, %d", count, most)
	}
	return count, nil
}

// all computes the loss and the gradients of all rows of x. dx is absent, or may be x.
func (f *linearLoss) all(c *Call, x, w, labels, dx device.Tensor) error {
	m, n := x.Shape[0], w.Shape[0]
	f.shrink = math.Ldexp(1, -bits.Len(uint(m))/2)
	most := min(max((m+lossParts-1)/lossParts, lossElements/max(n, 1)), m)
	most = min((most+lossRows-1)/lossRows*lossRows, m)
	losses, err := f.s.alloc(f.sums, device.Shape{m})
	if err != nil {
		return err
	}
	defer f.s.dev.Free(losses.Buf)
	logits, err := f.s.alloc(x.DType, device.Shape{most, n})
	if err != nil {
		return err
	}
	defer f.s.dev.Free(logits.Buf)
	for lo := 0; lo < m; lo += most {
		hi := min(lo+most, m)
		if err := f.part(c, lo, rowsOf(x, lo, hi), w, rowsOf(logits, 0, hi-lo), losses.Range(lo, hi), labels.Range(lo, hi), dx); err != nil {
			return err
		}
	}
	if m == 0 && !f.grads[1].IsZero() {
		if err := c.kernels.Fill(c.Stream, f.grads[1], 0); err != nil {
			return err
		}
	}
	mean := device.Store
	if !f.isSum && f.count.IsZero() {
		mean.Alpha = 1 / float64(m)
	}
	if err := c.kernels.Sum(c.Stream, c.Out, mean, losses); err != nil || f.isSum || f.count.IsZero() {
		return err
	}
	return c.kernels.Binary(c.Stream, kernels.Div, c.Out, c.Out, f.count.Range(0, 1).Reshape())
}

// overwrites reports whether the gradient for x is stored in the memory of x.
func (f *linearLoss) overwrites(x device.Tensor) bool {
	return f.spent != nil && f.spent.scope == f.s.scope && !f.spent.held && f.spent.buf.Len() == x.Bytes()
}

// part computes the losses and gradients of the rows of x, which begin at row lo. It computes the gradient of x
// last, because that may overwrite x.
func (f *linearLoss) part(c *Call, lo int, x, w, logits, losses, labels, dx device.Tensor) error {
	k, s := c.kernels, c.Stream
	if err := k.Linear(s, logits, x, w, device.Tensor{}, 0); err != nil {
		return err
	}
	if err := k.CrossEntropyInPlace(s, losses, logits, labels); err != nil {
		return err
	}
	if dw := f.grads[1]; !dw.IsZero() {
		acc := device.Accum{Alpha: f.shrink, Beta: 1}
		if lo == 0 {
			acc.Beta = 0
		}
		if err := k.MatMul(s, dw, acc, logits, true, x, false); err != nil {
			return err
		}
	}
	if !dx.IsZero() {
		return k.MatMul(s, rowsOf(dx, lo, lo+x.Shape[0]), device.Store, logits, false, w, false)
	}
	return nil
}

// rowsOf returns rows lo to hi of a matrix, without hi.
func rowsOf(t device.Tensor, lo, hi int) device.Tensor {
	n := t.Shape[1]
	return t.Range(lo*n, hi*n).Reshape(hi-lo, n)
}

func (f *linearLoss) Backward(c *Call, i int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	if !f.needed[i] {
		return fmt.Errorf("operand %d of the loss requires a gradient now, but did not when the loss was computed: call RequireGrad before the forward pass", i)
	}
	if i == 1 {
		acc.Alpha /= f.shrink
	}
	switch {
	case f.isSum:
	case f.count.IsZero():
		acc.Alpha /= float64(max(c.In[2].Len(), 1))
	default:
		mean, err := c.New(g.DType)
		if err != nil {
			return err
		}
		if err := c.kernels.Binary(c.Stream, kernels.Div, mean, g, f.count.Range(1, 2).Reshape()); err != nil {
			return err
		}
		g = mean
	}
	return c.kernels.ScaleBy(c.Stream, dst, acc, g, f.grads[i].Reshape(dst.Shape...))
}
