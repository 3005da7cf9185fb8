//go:build cgo && linux

package cuda

// #include "driver.h"
import "C"

import (
	"strconv"
	"unsafe"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
	"github.com/goddp/goddp/internal/kernels"
)

// headsArgs has the layout of the structure Heads in kernels/attention.cu.
type headsArgs struct {
	data             uint64
	batch, head, row int64
}

// attendArgs has the layout of the structure Attend in kernels/attention.cu.
type attendArgs struct {
	q, k, v, o, dst, dst2 headsArgs
	lse, delta, mask      uint64
	maskStrides           [4]int64
	heads, keyHeads       int64
	t, s, d               int64
	acc, acc2             device.Accum
	scale                 float64
	causal, maskKind      int32
}

// These are the kinds of masks in kernels/attention.cu.
const (
	noMask = iota
	allowedMask
	addedMask
)

// attentionKernel numbers the attention kernels. Each of them exists in one version for each head
// size.
type attentionKernel int

const (
	attentionForward attentionKernel = iota
	attentionQueryGrad
	attentionKeyValueGrad
)

var attentionNames = [...]string{"attention", "attention_query_grad", "attention_key_value_grad"}

// These are the head sizes that the kernels are compiled for. A head of another size uses the next
// larger one.
var (
	plainSizes = [...]int{64, kernels.MaxHeadSize}
	mmaSizes   = [...]int{32, 64, 128}
)

// attentionKernels holds the functions of attention_plain.cu and attention_mma.cu.
type attentionKernels struct {
	plain [len(attentionNames)][len(plainSizes)]perFloat
	mma   [len(attentionNames)][len(mmaSizes)]perFloat // for the 16-bit types
	delta perFloat
}

func (a *attentionKernels) plainFunctions() map[string]*perFloat {
	out := map[string]*perFloat{"attention_delta": &a.delta}
	for i, name := range attentionNames {
		for j, size := range plainSizes {
			out[name+"_"+strconv.Itoa(size)] = &a.plain[i][j]
		}
	}
	return out
}

func (a *attentionKernels) mmaFunctions() map[string]*C.uintptr_t {
	out := map[string]*C.uintptr_t{}
	for i, name := range attentionNames {
		for j, size := range mmaSizes {
			for _, dt := range []device.DType{device.Float16, device.BFloat16} {
				out[name+"_"+strconv.Itoa(size)+"_"+dt.String()] = &a.mma[i][j][dt]
			}
		}
	}
	return out
}

func (k *kernelSet) Attention(s device.Stream, o kernels.Heads, lse device.Tensor, a kernels.Attend) error {
	operands.Attention(o, lse, a)
	args := k.attend(a, o)
	args.lse = k.addr(lse)
	return k.launchAttention(s, attentionForward, a, args, o)
}

func (k *kernelSet) AttentionDelta(s device.Stream, delta device.Tensor, g, o kernels.Heads) error {
	operands.AttentionDelta(delta, g, o)
	if delta.Len() == 0 {
		return nil
	}
	a := attendArgs{
		q: k.heads(o), o: k.heads(g), delta: k.addr(delta),
		heads: int64(g.H), t: int64(g.T), d: int64(g.D), s: int64(delta.Len()), // 8 threads for each number
	}
	return k.launch(k.d.stream(s), k.attention.delta[g.Data.DType], k.flat(8*delta.Len()), unsafe.Pointer(&a), unsafe.Sizeof(a))
}

func (k *kernelSet) AttentionQueryGrad(s device.Stream, dq kernels.Heads, acc device.Accum, g kernels.Heads, lse, delta device.Tensor, a kernels.Attend) error {
	operands.AttentionQueryGrad(dq, g, lse, delta, a)
	args := k.attend(a, g)
	args.lse, args.delta, args.dst, args.acc = k.addr(lse), k.addr(delta), k.heads(dq), acc
	return k.launchAttention(s, attentionQueryGrad, a, args, g, dq)
}

func (k *kernelSet) AttentionKeyValueGrad(s device.Stream, dk kernels.Heads, accK device.Accum, dv kernels.Heads, accV device.Accum, g kernels.Heads, lse, delta device.Tensor, a kernels.Attend) error {
	operands.AttentionKeyValueGrad(dk, dv, g, lse, delta, a)
	args := k.attend(a, g)
	args.lse, args.delta = k.addr(lse), k.addr(delta)
	args.dst, args.acc, args.dst2, args.acc2 = k.heads(dk), accK, k.heads(dv), accV
	return k.launchAttention(s, attentionKeyValueGrad, a, args, g, dk, dv)
}

// attend returns the argument that all attention kernels take. o is the result of the forward pass,
// or the gradient with respect to it.
func (k *kernelSet) attend(a kernels.Attend, o kernels.Heads) attendArgs {
	args := attendArgs{
		q: k.heads(a.Q), k: k.heads(a.K), v: k.heads(a.V), o: k.heads(o),
		heads: int64(a.Q.H), keyHeads: int64(a.K.H), t: int64(a.Q.T), s: int64(a.K.T), d: int64(a.Q.D),
		scale: a.Scale, causal: flag(a.Causal),
	}
	if !a.Mask.IsZero() {
		args.mask, args.maskKind = k.addr(a.Mask), addedMask
		if a.Mask.DType == device.Uint8 {
			args.maskKind = allowedMask
		}
		for i, n := range operand.MaskStrides(a.Mask.Shape) {
			args.maskStrides[i] = int64(n)
		}
	}
	return args
}

func (k *kernelSet) heads(h kernels.Heads) headsArgs {
	return headsArgs{k.addr(h.Data), int64(h.BatchStride), int64(h.HeadStride), int64(h.RowStride)}
}

// launchAttention launches a kernel in which each block computes some rows of queries, or of keys.
// others are the kernel's operands besides q, k and v.
func (k *kernelSet) launchAttention(s device.Stream, which attentionKernel, a kernels.Attend, args attendArgs, others ...kernels.Heads) error {
	batches, heads, rows := a.Q.B, a.Q.H, a.Q.T
	if which == attentionKeyValueGrad {
		heads, rows = a.K.H, a.K.T
	}
	if batches == 0 || heads == 0 || rows == 0 || a.Q.D == 0 && which != attentionForward {
		return nil
	}
	dt := a.Q.Data.DType
	each, threads := 32, threads // each: the number of rows that a block computes
	var f C.uintptr_t
	switch largest := mmaSizes[len(mmaSizes)-1]; {
	case dt.Size() == 2 && a.Q.D <= largest && a.Scale > 0 && inPacks(a.Q, a.K, a.V) && inPacks(others...):
		size := sizeFor(mmaSizes[:], a.Q.D)
		f, each, threads = k.attention.mma[which][size][dt], 128, 4*warp
		if which == attentionKeyValueGrad || mmaSizes[size] == largest {
			each = 64
		}
	default:
		f = k.attention.plain[which][sizeFor(plainSizes[:], a.Q.D)][dt]
	}
	blocks := batches * heads * ceil(rows, each)
	return k.launch(k.d.stream(s), f, grid{blocks, 1, 1, threads, 1}, unsafe.Pointer(&args), unsafe.Sizeof(args))
}

// sizeFor returns the smallest of sizes that is at least d, the head size.
func sizeFor(sizes []int, d int) int {
	i := 0
	for sizes[i] < d {
		i++
	}
	return i
}

// inPacks reports whether each row of 16-bit heads consists of whole 16-byte packs at aligned
// addresses.
func inPacks(heads ...kernels.Heads) bool {
	const each = packBytes / 2
	for _, h := range heads {
		if h.Data.Buf.Addr()%packBytes != 0 || (h.D|h.BatchStride|h.HeadStride|h.RowStride)%each != 0 {
			return false
		}
	}
	return true
}
