//go:build cgo && linux

package cuda

// #include "blaslt.h"
// #include <stdlib.h>
import "C"

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/dl"
	"github.com/goddp/goddp/internal/jobenv"
)

// blasLt is the library libcublasLt, with the plans for the products that the program has computed.
type blasLt struct {
	d     *gpuDevice
	lib   *dl.Library
	fns   *C.blaslt             // in C's memory
	plans map[product]*blasPlan // nil: cuBLAS has no kernel
	races races
}

// blasPlan holds cuBLAS's descriptors of a product, and the algorithms for it.
type blasPlan struct {
	c       *C.blaslt_plan
	settled bool // whether the algorithm is chosen
}

// product holds everything that cuBLAS's choice of an algorithm depends on. It uses cuBLAS's
// conventions, in which arrays are column-major. cuBLAS sees a row-major array as its transpose.
// Therefore dst = x·y is requested as dstᵀ = yᵀ·xᵀ, with the operands swapped.
type product struct {
	dt                     device.DType
	tf32                   bool
	ta, tb                 bool // whether the first operand, y, and the second, x, are transposed
	rows, cols, inner      int  // n, m, k of the row-major product
	epilogue               C.int
	alignA, alignB, alignD int
	alignBias, alignAux    int

	// batch is the number of matrices that are multiplied; the strides are the distances, in
	// elements, between two consecutive matrices.
	batch                     int
	strideA, strideB, strideD int
}

// These are the epilogues: operations fused behind the product. epilogueGELUTanh writes the operand of GELUTanh
// to the matrix aux, and epilogueGELUTanhGrad reads it.
const (
	epilogueNone         = 1
	epilogueBias         = 4 // can be combined with epilogueGELUTanh
	epilogueGELUTanh     = 32 | 128
	epilogueGELUTanhGrad = 64 | 128
)

func epilogue(bias device.Tensor) C.int {
	if bias.IsZero() {
		return epilogueNone
	}
	return epilogueBias
}

// errUnsupported reports that cuBLAS has no kernel for a product.
var errUnsupported = errors.New("cuBLAS has no kernel for it")

// openBlasLt loads libcublasLt for a device.
func openBlasLt(d *gpuDevice) (*blasLt, error) {
	lib, err := dl.Open(dl.NVIDIA("libcublasLt, CUDA's matrix products,", jobenv.LibCUBLASLtVar,
		"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"))
	if err != nil {
		return nil, fmt.Errorf("cuda: %w", err)
	}
	b := &blasLt{d: d, lib: lib, fns: (*C.blaslt)(C.calloc(1, C.sizeof_blaslt)), plans: map[product]*blasPlan{}, races: races{least: leastRaced}}
	err = fill(lib, int(C.blaslt_count()),
		func(i int) string { return C.GoString(C.blaslt_symbol(C.int(i))) },
		func(i int, f unsafe.Pointer) { C.blaslt_set(b.fns, C.int(i), f) })
	if err == nil {
		err = b.check("cublasLtCreate", C.blaslt_create(b.fns, d.drv.fns, d.ctx))
	}
	if err != nil {
		C.free(unsafe.Pointer(b.fns))
		return nil, err
	}
	return b, nil
}

func (b *blasLt) String() string {
	return fmt.Sprintf("%v (%d)", b.lib, b.version())
}

func (b *blasLt) version() uint64 { return uint64(C.blaslt_version(b.fns)) }

func (b *blasLt) close() error {
	for _, p := range b.plans {
		if p != nil {
			C.blaslt_plan_free(b.fns, p.c)
		}
	}
	err := b.check("cublasLtDestroy", C.blaslt_destroy(b.fns, b.d.drv.fns, b.d.ctx))
	C.free(unsafe.Pointer(b.fns))
	return err
}

// check converts a status into an error. If the device has failed, check returns the device's error, because cuBLAS's
// status does not tell that.
func (b *blasLt) check(call string, status C.int) error {
	if status == 0 {
		return nil
	}
	if _, err := b.d.compute.idle(); err != nil {
		return err
	}
	return &Error{Device: b.d.name, Call: call, Code: int(status), Name: C.GoString(C.blaslt_error_name(b.fns, status))}
}

// plan returns the plan for a product. The first call for a product queries cuBLAS; later calls return the
// same plan. The error is errUnsupported if cuBLAS has no kernel for the product.
func (b *blasLt) plan(p product, bias, aux uint64) (*blasPlan, error) {
	if found, ok := b.plans[p]; ok {
		if found == nil {
			return nil, errUnsupported
		}
		return found, nil
	}
	w := C.blaslt_product{
		ta: C.int(flag(p.ta)), tb: C.int(flag(p.tb)),
		rows: C.uint64_t(p.rows), cols: C.uint64_t(p.cols), inner: C.uint64_t(p.inner),
		epilogue: p.epilogue, bias: C.uint64_t(bias), aux: C.uint64_t(aux), workspace: workspaceSize,
		alignA: C.uint32_t(p.alignA), alignB: C.uint32_t(p.alignB), alignD: C.uint32_t(p.alignD),
		ways: C.int(b.races.ways(p)), batch: C.int32_t(p.batch), strideA: C.int64_t(p.strideA), strideB: C.int64_t(p.strideB), strideD: C.int64_t(p.strideD),
	}
	w._type, w.compute, w.scale = p.types()
	var made *C.blaslt_plan
	status := C.blaslt_plan_new(b.fns, b.d.drv.fns, b.d.ctx, &w, &made)
	if status == C.BLASLT_NOT_SUPPORTED {
		b.plans[p] = nil
		return nil, errUnsupported
	}
	if err := b.check("cublasLtMatmulAlgoGetHeuristic", status); err != nil {
		return nil, err
	}
	b.plans[p] = &blasPlan{made, made.count == 1}
	return b.plans[p], nil
}

// types returns cuBLAS's constants for the type of the elements, of the computation, and of the
// factors.
func (p product) types() (element, compute, scale C.int) {
	const (
		r32F, r64F, r16F, r16BF = 0, 1, 2, 14 // cudaDataType
		in32F, in64F, inTF32    = 68, 70, 77  // cublasComputeType_t
	)
	switch p.dt {
	case device.Float64:
		return r64F, in64F, r64F
	case device.Float16:
		return r16F, in32F, r32F
	case device.BFloat16:
		return r16BF, in32F, r32F
	}
	if p.tf32 {
		return r32F, inTF32, r32F
	}
	return r32F, in32F, r32F
}

// arguments holds the addresses of the operands of one product.
type arguments struct {
	alpha, beta           float64
	a, b, c, d, bias, aux uint64
}

// run enqueues a product.
func (b *blasLt) run(s *gpuStream, p *blasPlan, a arguments) error {
	work, err := s.workspace()
	if err != nil {
		return err
	}
	return s.enqueued(b.check("cublasLtMatmul", C.blaslt_run(b.fns, b.d.drv.fns, b.d.ctx, p.c, C.double(a.alpha), C.uint64_t(a.a), C.uint64_t(a.b),
		C.double(a.beta), C.uint64_t(a.c), C.uint64_t(a.d), C.uint64_t(a.bias), C.uint64_t(a.aux), C.uint64_t(work.Addr()), workspaceSize, s.handle)))
}
