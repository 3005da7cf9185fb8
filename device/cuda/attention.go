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
	lse, delta            uint64
	mask, starts          uint64
	maskStrides           [4]int64
	heads, keyHeads       int64
	t, s, d, window       int64
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

// These are the head sizes for which the kernels are compiled. Other sizes use the next larger one.
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

// Attention uses cuDNN if PrepareAttention has a plan for the shape, and otherwise this package's
// kernel.
func (k *kernelSet) Attention(st device.Stream, o kernels.Heads, lse device.Tensor, a kernels.Attend) error {
	operands.Attention(o, lse, a)
	s := k.d.stream(st)
	if done, err := k.flash.forward(s, o, lse, a); done || err != nil {
		return err
	}
	return k.ownAttention(s, o, lse, a)
}

// AttentionGrad uses cuDNN if PrepareAttention has a plan for the shape, and otherwise this package's
// kernels.
func (k *kernelSet) AttentionGrad(st device.Stream, to kernels.AttentionGrads, g, o kernels.Heads, lse device.Tensor, a kernels.Attend) error {
	operands.AttentionGrad(to, g, o, lse, a)
	s := k.d.stream(st)
	if done, err := k.flash.backward(s, to, g, o, lse, a); done || err != nil {
		return err
	}
	return k.ownAttentionGrad(s, to, g, o, lse, a)
}

// PrepareAttention lets cuDNN choose and load its kernels.
func (k *kernelSet) PrepareAttention(st device.Stream, o kernels.Heads, a kernels.Attend) error {
	operands.PrepareAttention(o, a)
	return k.flash.prepare(k.d.stream(st), o, a)
}

func (k *kernelSet) ownAttention(s *gpuStream, o kernels.Heads, lse device.Tensor, a kernels.Attend) error {
	args := k.attend(a, o)
	args.lse = k.addr(lse)
	return k.launchAttention(s, attentionForward, a, args, o)
}

// ownAttentionGrad computes the row sums of g·o in scratch memory, and then the gradients.
func (k *kernelSet) ownAttentionGrad(s *gpuStream, to kernels.AttentionGrads, g, o kernels.Heads, lse device.Tensor, a kernels.Attend) error {
	if lse.Len() == 0 && a.K.Shape().Len() == 0 {
		return nil
	}
	delta, unused := lse, device.Tensor{}
	parts := []*device.Tensor{&delta}
	keys, values := !to.K.Data.IsZero(), !to.V.Data.IsZero()
	if keys != values { // one kernel computes both
		unused = device.Tensor{DType: a.K.Data.DType, Shape: a.K.Shape()}
		parts = append(parts, &unused)
	}
	scratch, err := k.scratch(parts...)
	if err != nil {
		return err
	}
	defer k.freeScratch(s, scratch)
	if err := k.attentionDelta(s, delta, g, o); err != nil {
		return err
	}
	if !to.Q.Data.IsZero() {
		args := k.attend(a, g)
		args.lse, args.delta, args.dst, args.acc = k.addr(lse), k.addr(delta), k.heads(to.Q), to.AccQ
		if err := k.launchAttention(s, attentionQueryGrad, a, args, g, to.Q); err != nil {
			return err
		}
	}
	switch {
	case !keys && !values:
		return nil
	case !keys:
		to.K, to.AccK = kernels.HeadsFirst(unused), device.Store
	case !values:
		to.V, to.AccV = kernels.HeadsFirst(unused), device.Store
	}
	args := k.attend(a, g)
	args.lse, args.delta = k.addr(lse), k.addr(delta)
	args.dst, args.acc, args.dst2, args.acc2 = k.heads(to.K), to.AccK, k.heads(to.V), to.AccV
	return k.launchAttention(s, attentionKeyValueGrad, a, args, g, to.K, to.V)
}

// attentionDelta computes delta [B H T], the row sums of g·o.
func (k *kernelSet) attentionDelta(s *gpuStream, delta device.Tensor, g, o kernels.Heads) error {
	if delta.Len() == 0 {
		return nil
	}
	a := attendArgs{
		q: k.heads(o), o: k.heads(g), delta: k.addr(delta),
		heads: int64(g.H), t: int64(g.T), d: int64(g.D), s: int64(delta.Len()), // 8 threads for each number
	}
	return k.launch(s, k.attention.delta[g.Data.DType], k.flat(8*delta.Len()), unsafe.Pointer(&a), unsafe.Sizeof(a))
}

// attend returns the argument that all attention kernels take. o is the result of the forward pass,
// or the gradient with respect to it.
func (k *kernelSet) attend(a kernels.Attend, o kernels.Heads) attendArgs {
	args := attendArgs{
		q: k.heads(a.Q), k: k.heads(a.K), v: k.heads(a.V), o: k.heads(o),
		heads: int64(a.Q.H), keyHeads: int64(a.K.H), t: int64(a.Q.T), s: int64(a.K.T), d: int64(a.Q.D), window: int64(a.Window),
		scale: a.Scale, causal: flag(a.Causal),
	}
	args.starts = k.optional(a.Starts)
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
// The parameter others holds the kernel's operands besides q, k and v.
func (k *kernelSet) launchAttention(s *gpuStream, which attentionKernel, a kernels.Attend, args attendArgs, others ...kernels.Heads) error {
	batches, heads, rows := a.Q.B, a.Q.H, a.Q.T
	if which == attentionKeyValueGrad {
		heads, rows = a.K.H, a.K.T
	}
	if batches == 0 || heads == 0 || rows == 0 || a.Q.D == 0 && which != attentionForward {
		return nil
	}
	dt := a.Q.Data.DType
	each, threads := 32, threads // each is the number of rows that a block computes
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
	return k.launch(s, f, grid{blocks, 1, 1, threads, 1}, unsafe.Pointer(&args), unsafe.Sizeof(args))
}

// sizeFor returns the smallest size in the list sizes that is at least the head size d.
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
