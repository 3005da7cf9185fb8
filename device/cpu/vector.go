//go:build cgo && unix && (amd64 || arm64)

package cpu

/*
#include "vector.h"

#cgo noescape vector_apply_4
#cgo nocallback vector_apply_4
#cgo noescape vector_apply_8
#cgo nocallback vector_apply_8
#cgo noescape vector_exps_4
#cgo nocallback vector_exps_4
#cgo noescape vector_exps_8
#cgo nocallback vector_exps_8
#cgo noescape vector_dropout_4
#cgo nocallback vector_dropout_4
#cgo noescape vector_dropout_8
#cgo nocallback vector_dropout_8
#cgo noescape vector_max_pool_4
#cgo nocallback vector_max_pool_4
#cgo noescape vector_max_pool_8
#cgo nocallback vector_max_pool_8
#cgo noescape vector_relu
#cgo nocallback vector_relu
#cgo noescape vector_relu_grad
#cgo nocallback vector_relu_grad
#cgo noescape vector_sum
#cgo nocallback vector_sum
#cgo noescape vector_add_rows
#cgo nocallback vector_add_rows
#cgo noescape vector_adamw
#cgo nocallback vector_adamw
#cgo noescape vector_largest
#cgo nocallback vector_largest
*/
import "C"

import (
	"runtime"
	"unsafe"

	features "golang.org/x/sys/cpu"

	"github.com/goddp/goddp/device/internal/operand"
	"github.com/goddp/goddp/internal/kernels"
)

// vectorLanes is the number of float64 in a vector of the processor, 0 without the instructions that vector.h needs.
var vectorLanes = lanes()

func lanes() int {
	switch x := &features.X86; {
	case x.HasAVX512F && x.HasAVX512DQ:
		return 8
	case x.HasAVX2 && x.HasFMA, runtime.GOARCH == "arm64":
		return 4
	}
	return 0
}

// vectorFunctions has functions of x, and the products of g and their derivatives at x.
var vectorFunctions = map[kernels.UnaryFunc]struct{ value, slope C.enum_vector_function }{
	kernels.FuncExp:      {C.EXP, C.NONE},
	kernels.FuncTanh:     {C.TANH, C.TANH_SLOPE},
	kernels.FuncSigmoid:  {C.SIGMOID, C.SIGMOID_SLOPE},
	kernels.FuncSiLU:     {C.SILU, C.SILU_SLOPE},
	kernels.FuncGELU:     {C.GELU, C.GELU_SLOPE},
	kernels.FuncGELUTanh: {C.GELU_TANH, C.GELU_TANH_SLOPE},
}

func vectorUnary(f kernels.UnaryFunc, dst, x []float32) bool {
	return vectorApply(vectorFunctions[f].value, dst, x, x, x)
}

func vectorUnaryGrad(f kernels.UnaryFunc, dst, g, x []float32) bool {
	return vectorApply(vectorFunctions[f].slope, dst, x, g, g)
}

func vectorSwiGLU(dst, gate, up []float32) bool {
	return vectorApply(C.SWIGLU, dst, gate, up, up)
}

func vectorSwiGLUGate(dst, g, gate, up []float32) bool {
	return vectorApply(C.SWIGLU_GATE, dst, gate, up, g)
}

func vectorApply(f C.enum_vector_function, dst, a, b, c []float32) bool {
	if vectorLanes == 0 || f == C.NONE || dst == nil {
		return false
	}
	n := len(dst)
	if vectorLanes == 8 {
		C.vector_apply_8(f, first(dst), first(a[:n]), first(b[:n]), first(c[:n]), C.long(n))
	} else {
		C.vector_apply_4(f, first(dst), first(a[:n]), first(b[:n]), first(c[:n]), C.long(n))
	}
	return true
}

func vectorExps(dst, x []float32, shift float64) (sum float64, ok bool) {
	if vectorLanes == 0 || x == nil {
		return 0, false
	}
	if vectorLanes == 8 {
		return float64(C.vector_exps_8(first(dst), first(x), C.long(len(x)), C.double(shift))), true
	}
	return float64(C.vector_exps_4(first(dst), first(x), C.long(len(x)), C.double(shift))), true
}

func vectorDropout(dst, x []float32, factor float32, threshold, seed, offset uint64) bool {
	if vectorLanes == 0 || dst == nil || threshold == 0 {
		return false
	}
	n, limit := len(dst), C.uint32_t(threshold-1)
	if vectorLanes == 8 {
		C.vector_dropout_8(first(dst), first(x[:n]), C.long(n), C.float(factor), limit, C.uint64_t(seed), C.uint64_t(offset))
	} else {
		C.vector_dropout_4(first(dst), first(x[:n]), C.long(n), C.float(factor), limit, C.uint64_t(seed), C.uint64_t(offset))
	}
	return true
}

func vectorMaxPool(z operand.PoolSizes, w *kernels.Window, before, after int, dst []float32, at []int32, x []float32, lo, hi int) bool {
	if vectorLanes == 0 || dst == nil {
		return false
	}
	two := func(v [2]int) [2]C.long { return [2]C.long{C.long(v[0]), C.long(v[1])} }
	_, depth := planes(z, w.ChannelsLast)
	p := C.struct_pooling{
		kernel: two(w.Kernel), stride: two(w.Stride), padding: two(w.Padding), dilation: two(w.Dilation),
		height: C.long(z.H), width: C.long(z.W), depth: C.long(depth), rows: C.long(z.OH), columns: C.long(z.OW),
		before: C.long(before), after: C.long(after),
	}
	to := (*C.int32_t)(unsafe.SliceData(at))
	if vectorLanes == 8 && max(depth, z.OW) >= 8 {
		C.vector_max_pool_8(&p, first(dst), to, first(x), C.long(lo), C.long(hi))
	} else {
		C.vector_max_pool_4(&p, first(dst), to, first(x), C.long(lo), C.long(hi))
	}
	return true
}

func vectorReLU(dst, x []float32) bool {
	if vectorLanes == 0 || dst == nil {
		return false
	}
	C.vector_relu(first(dst), first(x[:len(dst)]), C.long(len(dst)))
	return true
}

func vectorReLUGrad(dst, g, y []float32) bool {
	if vectorLanes == 0 || dst == nil {
		return false
	}
	n := len(dst)
	C.vector_relu_grad(first(dst), first(g[:n]), first(y[:n]), C.long(n))
	return true
}

func vectorSum(x []float32) (sum float64, ok bool) {
	const least = 64 // for fewer, the call takes longer than the sum
	if vectorLanes == 0 || len(x) < least {
		return 0, false
	}
	return float64(C.vector_sum(first(x), C.long(len(x)))), true
}

func vectorAddRows(sums []float64, x []float32, stride, rows int) bool {
	n := len(sums)
	if vectorLanes == 0 || x == nil || rows == 0 {
		return false
	}
	x = x[:(rows-1)*stride+n]
	C.vector_add_rows((*C.double)(unsafe.SliceData(sums)), first(x), C.long(n), C.long(stride), C.long(rows))
	return true
}

func vectorAdamW(r *adamWRule[float32], w, g, m, v []float32) bool {
	if vectorLanes == 0 || w == nil {
		return false
	}
	C.vector_adamw(C.struct_adamw{
		C.float(r.rate), C.float(r.root), C.float(r.kept), C.float(r.unscale),
		C.float(r.beta1), C.float(r.fresh1), C.float(r.beta2), C.float(r.fresh2), C.float(r.eps),
	}, first(w), first(g), first(m), first(v), C.long(len(w)))
	return true
}

func vectorLargest(x []float32) (most float32, ok bool) {
	if vectorLanes == 0 || len(x) == 0 {
		return 0, false
	}
	return float32(C.vector_largest(first(x), C.long(len(x)))), true
}

func first(x []float32) *C.float { return (*C.float)(unsafe.SliceData(x)) }
