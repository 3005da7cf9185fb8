//go:build cgo && linux

package cuda

// #include "blaslt.h"
// #include <stdlib.h>
import "C"

import (
	"encoding/hex"
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
	fns   *C.blaslt // in C's memory
	plans map[product]*plan
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

// These are the epilogues: operations fused behind the product. epilogueBiasGrad sums B's columns and
// overwrites the bias address with the sums, without the product's factor. epilogueGELUTanh writes the
// operand of GELUTanh to the matrix aux, and epilogueGELUTanhGrad reads it.
const (
	epilogueNone         = 1
	epilogueBias         = 4   // may be added to epilogueGELUTanh
	epilogueBiasGrad     = 512 // CUBLASLT_EPILOGUE_BGRADB: B must be stored transposed
	epilogueGELUTanh     = 32 | 128
	epilogueGELUTanhGrad = 64 | 128
)

func epilogue(bias device.Tensor) C.int {
	if bias.IsZero() {
		return epilogueNone
	}
	return epilogueBias
}

// plan is a way to compute a product.
type plan struct {
	c    *C.blaslt_plan
	best C.int // the index of the chosen candidate
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
	b := &blasLt{d: d, lib: lib, fns: (*C.blaslt)(C.calloc(1, C.sizeof_blaslt)), plans: map[product]*plan{}}
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

// check converts a status into an error. If the device has failed, which cuBLAS's status does not
// say, check returns the device's error.
func (b *blasLt) check(call string, status C.int) error {
	if status == 0 {
		return nil
	}
	if _, err := b.d.compute.idle(); err != nil {
		return err
	}
	return &Error{Device: b.d.name, Call: call, Code: int(status), Name: C.GoString(C.blaslt_error_name(b.fns, status))}
}

// plan returns the plan for a product. The first call for a product queries cuBLAS, and fresh is true;
// later calls return the same plan. The error is errUnsupported if cuBLAS has no kernel for the
// product.
func (b *blasLt) plan(p product, bias, aux uint64) (_ *plan, fresh bool, err error) {
	if found, ok := b.plans[p]; ok {
		if found == nil {
			return nil, false, errUnsupported
		}
		return found, false, nil
	}
	w := C.blaslt_product{
		ta: C.int(flag(p.ta)), tb: C.int(flag(p.tb)),
		rows: C.uint64_t(p.rows), cols: C.uint64_t(p.cols), inner: C.uint64_t(p.inner),
		epilogue: p.epilogue, bias: C.uint64_t(bias), aux: C.uint64_t(aux), workspace: workspaceSize,
		alignA: C.uint32_t(p.alignA), alignB: C.uint32_t(p.alignB), alignD: C.uint32_t(p.alignD),
		batch: C.int32_t(p.batch), strideA: C.int64_t(p.strideA), strideB: C.int64_t(p.strideB), strideD: C.int64_t(p.strideD),
	}
	w._type, w.compute, w.scale = p.types()
	made := &plan{}
	status := C.blaslt_plan_new(b.fns, b.d.drv.fns, b.d.ctx, &w, &made.c)
	if status == C.BLASLT_NOT_SUPPORTED {
		b.plans[p] = nil
		return nil, false, errUnsupported
	}
	if err := b.check("cublasLtMatmulAlgoGetHeuristic", status); err != nil {
		return nil, false, err
	}
	b.plans[p] = made
	return made, true, nil
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

// run enqueues a product, using candidate i of its plan.
func (b *blasLt) run(s *gpuStream, p *plan, i C.int, a arguments) error {
	work, err := s.workspace()
	if err != nil {
		return err
	}
	return s.enqueued(b.check("cublasLtMatmul", C.blaslt_run(b.fns, b.d.drv.fns, b.d.ctx, p.c, i, C.double(a.alpha), C.uint64_t(a.a), C.uint64_t(a.b),
		C.double(a.beta), C.uint64_t(a.c), C.uint64_t(a.d), C.uint64_t(a.bias), C.uint64_t(a.aux), C.uint64_t(work.Addr()), workspaceSize, s.handle)))
}

// algo returns the name of candidate i of a plan: cuBLAS's description of the algorithm.
func (p *plan) algo(i C.int) string {
	return hex.EncodeToString(C.GoBytes(unsafe.Pointer(C.blaslt_plan_algo(p.c, i)), C.sizeof_blaslt_algo))
}

// tune selects the fastest candidate of a product's plan: from an earlier timing, or by timing the
// candidates on the product's operands, with results in scratch memory. If the timing fails, cuBLAS's
// default choice is kept.
func (b *blasLt) tune(s *gpuStream, known *choices, w product, p *plan, a arguments, size int) error {
	what, count := fmt.Sprintf("%+v", w), C.blaslt_plan_count(p.c)
	if chosen, ok := known.made[what]; ok {
		for i := range count {
			if p.algo(i) == chosen {
				p.best = i
				return nil
			}
		}
	}
	captured, err := s.capturing()
	if err != nil || captured {
		return err
	}
	scratch, err := b.d.Alloc(size)
	if err != nil {
		return nil
	}
	defer b.d.Free(scratch)
	a.d = uint64(scratch.Addr())
	best, decided, err := b.d.race(s, int(count), func(i int) error { return b.run(s, p, C.int(i), a) })
	if err != nil || !decided {
		return err
	}
	p.best = C.int(best)
	known.put(what, p.algo(p.best))
	return nil
}
