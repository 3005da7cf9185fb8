package operand

import (
	"fmt"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// Attention checks the operands of an Attention.
func (ts Types) Attention(o kernels.Heads, lse device.Tensor, a kernels.Attend) {
	const op = "Attention"
	ts.attend(op, a)
	checkHeads(op, o, a.Q.Data.DType, a.Q.Shape())
	checkRows(op, lse, a.Q)
}

// PrepareAttention checks the operands of a PrepareAttention.
func (ts Types) PrepareAttention(o kernels.Heads, a kernels.Attend) {
	const op = "PrepareAttention"
	ts.attend(op, a)
	checkHeads(op, o, a.Q.Data.DType, a.Q.Shape())
}

// AttentionGrad checks the operands of an AttentionGrad.
func (ts Types) AttentionGrad(to kernels.AttentionGrads, g, o kernels.Heads, lse device.Tensor, a kernels.Attend) {
	const op = "AttentionGrad"
	ts.Attention(o, lse, a)
	dt := a.Q.Data.DType
	checkHeads(op, g, dt, a.Q.Shape())
	for _, grad := range []struct{ to, of kernels.Heads }{{to.Q, a.Q}, {to.K, a.K}, {to.V, a.V}} {
		if !grad.to.Data.IsZero() {
			checkHeads(op, grad.to, dt, grad.of.Shape())
		}
	}
}

func (ts Types) attend(op string, a kernels.Attend) {
	q, k := a.Q, a.K
	ts.Float(op, q.Data)
	dt := q.Data.DType
	checkHeads(op, q, dt, q.Shape())
	checkHeads(op, k, dt, k.Shape())
	checkHeads(op, a.V, dt, k.Shape())
	if q.D > kernels.MaxHeadSize {
		panic(&device.ShapeError{Op: op, A: q.Shape(), Want: fmt.Sprintf("heads of at most %d elements", kernels.MaxHeadSize)})
	}
	if q.B != k.B || q.D != k.D || q.H > 0 && (k.H == 0 || q.H%k.H != 0) || q.H == 0 && k.H > 0 {
		panic(&device.ShapeError{Op: op, A: q.Shape(), B: k.Shape()})
	}
	if !a.Starts.IsZero() {
		checkType(op, a.Starts, device.Int64)
		checkShape(op, device.Shape{a.Q.B, a.Q.T}, a.Starts)
		if !a.Causal {
			panic(fmt.Errorf("%s: Starts without Causal, want both", op))
		}
	}
	if a.Window < 0 {
		panic(fmt.Errorf("%s: Window %d, want at least 0", op, a.Window))
	}
	if !a.Mask.IsZero() {
		if a.Mask.DType != device.Uint8 {
			checkType(op+" with a mask", a.Mask, dt)
		}
		checkBroadcast(op+" with a mask", a.Mask.Shape, device.Shape{q.B, q.H, q.T, k.T})
	}
}

// checkHeads checks the type and the shape of h, and that its elements lie within its memory.
func checkHeads(op string, h kernels.Heads, dt device.DType, want device.Shape) {
	checkType(op, h.Data, dt)
	if got := h.Shape(); !got.Equal(want) {
		panic(&device.ShapeError{Op: op, A: got, B: want})
	}
	if h.Shape().Len() == 0 {
		return
	}
	last := (h.B-1)*h.BatchStride + (h.H-1)*h.HeadStride + (h.T-1)*h.RowStride + h.D
	if min(h.BatchStride, h.HeadStride) < 0 || h.RowStride < h.D || last > h.Data.Len() {
		panic(fmt.Errorf("%s: shape %v with batch stride %d, head stride %d and row stride %d needs %d elements, but the memory holds %d",
			op, h.Shape(), h.BatchStride, h.HeadStride, h.RowStride, last, h.Data.Len()))
	}
}

// checkRows checks a tensor with one number for each row of h. Its type is Float64 if h's is, and
// Float32 otherwise.
func checkRows(op string, t device.Tensor, h kernels.Heads) {
	want := device.Float32
	if h.Data.DType == device.Float64 {
		want = device.Float64
	}
	checkType(op, t, want)
	checkShape(op, device.Shape{h.B, h.H, h.T}, t)
}

// MaskStrides returns the distances, in elements, between a mask's values for neighbouring batches,
// heads, queries and keys. The mask broadcasts to [B H T S]; along an axis that it does not have,
// the distance is 0.
func MaskStrides(mask device.Shape) (strides [4]int) {
	step := 1
	for i := 1; i <= len(mask); i++ {
		n := mask[len(mask)-i]
		if n != 1 {
			strides[4-i] = step
		}
		step *= n
	}
	return strides
}
