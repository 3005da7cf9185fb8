//go:build cgo && linux

package cuda

/*
#include "dnn.h"

// noescape keeps the addresses of a run on the stack.
#cgo noescape cudnn_run
#cgo nocallback cudnn_run
*/
import "C"

import (
	"errors"
	"fmt"
	"path/filepath"
	"unsafe"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/dl"
	"github.com/goddp/goddp/internal/jobenv"
)

// These are the supported versions of cuDNN, as returned by cudnnGetVersion. The numbers in dnn.h and below
// are those of major version 9. Versions 9.10.0 and 9.10.1 compute wrong gradients.
const (
	cudnnMajor  = 9
	cudnnOldest = 91002
)

// cudnn is the library libcudnn, with a handle for one device.
type cudnn struct {
	d       *gpuDevice
	lib     *dl.Library
	fns     *C.cudnn // in C's memory
	version int      // 91900 means 9.19.0
}

// cudnn returns the library, which it opens at the first call, or nil if no usable one is found.
func (k *kernelSet) cudnn() *cudnn {
	if k.triedCudnn {
		return k.dnn
	}
	k.triedCudnn = true
	var err error
	if k.dnn, err = openCudnn(k.d); err != nil {
		k.d.log.Info("cuda: not using cuDNN for attention and convolutions", "device", k.d.name, "because", err)
	} else {
		k.d.log.Debug("cuda: cuDNN opened", "device", k.d.name, "libcudnn", k.dnn)
	}
	return k.dnn
}

// openCudnn loads libcudnn for a device.
func openCudnn(d *gpuDevice) (*cudnn, error) {
	lib, err := dl.Open(dl.NVIDIA("libcudnn, NVIDIA's neural network kernels,", jobenv.LibCUDNNVar, "libcudnn.so.9"))
	if err != nil {
		return nil, fmt.Errorf("cuda: %w", err)
	}
	c := &cudnn{d: d, lib: lib, fns: (*C.cudnn)(C.calloc(1, C.sizeof_cudnn))}
	err = fill(lib, int(C.cudnn_count()),
		func(i int) string { return C.GoString(C.cudnn_symbol(C.int(i))) },
		func(i int, f unsafe.Pointer) { C.cudnn_set(c.fns, C.int(i), f) })
	if err == nil {
		c.openParts()
		c.version = int(C.cudnn_version(c.fns))
		if c.version/10000 != cudnnMajor || c.version < cudnnOldest {
			err = fmt.Errorf("cuda: %v is version %d, want %d or a later version of cuDNN %d", lib, c.version, cudnnOldest, cudnnMajor)
		}
	}
	if err == nil {
		err = c.check("cudnnCreate", C.cudnn_create(c.fns, d.drv.fns, d.ctx))
	}
	if err != nil {
		C.free(unsafe.Pointer(c.fns))
		return nil, err
	}
	return c, nil
}

// openParts preloads libcudnn's sub-libraries from libcudnn's folder. libcudnn later opens them by their bare
// names, and so gets the matching version.
func (c *cudnn) openParts() {
	path := C.cudnn_path(c.fns)
	if path == nil {
		return
	}
	file, err := filepath.EvalSymlinks(C.GoString(path))
	if err != nil {
		return
	}
	for _, part := range []string{"graph", "heuristic", "engines_*"} {
		found, _ := filepath.Glob(filepath.Join(filepath.Dir(file), "libcudnn_"+part+".so.9")) // the error is nil, because the pattern is well formed
		for _, file := range found {
			dl.Open(dl.Search{Name: filepath.Base(file), Files: []string{file}}) // libcudnn reports a missing library when it needs it
		}
	}
}

func (c *cudnn) String() string { return fmt.Sprintf("%v (%d)", c.lib, c.version) }

// close closes the library of an idle device.
func (c *cudnn) close() error {
	err := c.check("cudnnDestroy", C.cudnn_destroy(c.fns, c.d.drv.fns, c.d.ctx))
	C.free(unsafe.Pointer(c.fns))
	return err
}

// check converts a status into an error. If the device has failed, check returns the device's error.
func (c *cudnn) check(call string, status C.int) error {
	if status == 0 {
		return nil
	}
	if _, err := c.d.compute.idle(); err != nil {
		return err
	}
	return &Error{
		Device: c.d.name, Call: call, Code: int(status),
		Name: C.GoString(C.cudnn_error_name(c.fns, status)), Text: C.GoString(C.cudnn_error_text(c.fns)),
	}
}

// These are kinds of descriptors (cudnnBackendDescriptorType_t).
const (
	descPointwise          = 0
	descConvolution        = 1
	descEngine             = 2
	descEngineConfig       = 3
	descEngineHeuristic    = 4
	descExecutionPlan      = 5
	descConvolutionForward = 10
	descConvolutionFilter  = 11
	descConvolutionData    = 12
	descPointwiseOperation = 13
	descOperationGraph     = 15
	descTensor             = 17
	descMatMul             = 18
	descMatMulOperation    = 19
	descReduction          = 21
	descReductionOperation = 22
	descReshapeOperation   = 31
)

// These are names of attributes (cudnnBackendAttributeName_t).
const (
	attrPointwiseMode, attrPointwiseMath, attrPointwiseAxis     = 0, 1, 9
	attrHeuristicMode, attrHeuristicGraph, attrHeuristicResults = 200, 201, 202
	attrConfigEngine                                            = 300
	attrPlanHandle, attrPlanConfig, attrPlanWorkspace           = 400, 401, 402
	attrPointwiseDesc, attrPointwiseX, attrPointwiseB           = 750, 751, 752
	attrPointwiseY, attrPointwiseAlpha1, attrPointwiseAlpha2    = 753, 754, 755
	attrPointwiseT                                              = 758
	attrGraphHandle, attrGraphOperations                        = 800, 801
	attrTensorAlignment, attrTensorType                         = 900, 901
	attrTensorDims, attrTensorStrides, attrTensorID             = 902, 903, 906
	attrTensorVirtual, attrTensorByValue                        = 907, 908
	attrEngineNotes                                             = 1303
	attrMatMulMath                                              = 1500
	attrMatMulA, attrMatMulB, attrMatMulC, attrMatMulDesc       = 1520, 1521, 1522, 1523
	attrReductionMode, attrReductionMath                        = 1600, 1601
	attrReductionX, attrReductionY, attrReductionDesc           = 1610, 1611, 1612
	attrReshapeX, attrReshapeY                                  = 2200, 2201
)

// These are types of attributes (cudnnBackendAttributeType_t).
const (
	typeHandle        = 0
	typeDataType      = 1
	typeBool          = 2
	typeInt64         = 3
	typeFloat         = 4
	typeConvolution   = 7
	typeHeuristicMode = 8
	typeNote          = 11
	typePointwiseMode = 14
	typeDescriptor    = 15
	typeReductionMode = 18
)

// These are types of elements (cudnnDataType_t).
const (
	cudnnFloat32  = 0
	cudnnFloat16  = 2
	cudnnInt32    = 4
	cudnnBFloat16 = 9
	cudnnBool     = 11
)

// These are modes of operations: cudnnPointwiseMode_t and cudnnReduceTensorOp_t.
const (
	pointwiseAdd          = 0
	pointwiseMul          = 1
	pointwiseDiv          = 6
	pointwiseSub          = 9
	pointwiseExp          = 13
	pointwiseLog          = 15
	pointwiseIdentity     = 21
	pointwiseGreaterEqual = 303
	pointwiseIndex        = 501
	pointwiseSelect       = 601

	reduceAdd = 0
	reduceMax = 3
)

// cudnnType returns cuDNN's number for Float32 and the 16-bit types.
func cudnnType(dt device.DType) C.int {
	switch dt {
	case device.Float32:
		return cudnnFloat32
	case device.Float16:
		return cudnnFloat16
	}
	return cudnnBFloat16
}

// attribute is an attribute of a descriptor, with one or more values.
type attribute struct {
	name, kind C.int
	n          int
	values     unsafe.Pointer
}

func intsAttr(name C.int, v ...int64) attribute {
	return attribute{name, typeInt64, len(v), unsafe.Pointer(&v[0])}
}
func enumAttr(name, kind, v C.int) attribute { return attribute{name, kind, 1, unsafe.Pointer(&v)} }
func boolAttr(name C.int, v bool) attribute  { return attribute{name, typeBool, 1, unsafe.Pointer(&v)} }
func descAttr(name C.int, v ...C.uintptr_t) attribute {
	return attribute{name, typeDescriptor, len(v), unsafe.Pointer(&v[0])}
}
func floatAttr(name C.int, v float32) attribute {
	return attribute{name, typeFloat, 1, unsafe.Pointer(&v)}
}

// dims4 holds the sizes or the strides of an array of four dimensions: batches, heads, rows, columns.
type dims4 [4]int64

// dense returns the strides of a dense array.
func (d dims4) dense() dims4 { return dims4{d[1] * d[2] * d[3], d[2] * d[3], d[3], 1} }

// transposed returns d with its rows and columns exchanged.
func (d dims4) transposed() dims4 { return dims4{d[0], d[1], d[3], d[2]} }

// array is an operand or a result of an operation in a graph.
type array struct {
	desc          C.uintptr_t
	dt            C.int
	dims, strides dims4
}

// graph collects operations for cuDNN. After the first error, which err holds, its methods do nothing.
type graph struct {
	c      *cudnn
	made   []C.uintptr_t // all descriptors, in order of creation
	ops    []C.uintptr_t
	arrays []int64 // the ids of arrays in device memory
	ids    []int64 // the ids of numbers that are read from the host
	values []float32
	nextID int64
	err    error
}

func (g *graph) check(call string, status C.int) bool {
	if g.err == nil {
		g.err = g.c.check(call, status)
	}
	return g.err == nil
}

// free destroys all descriptors.
func (g *graph) free() {
	for i := len(g.made) - 1; i >= 0; i-- {
		C.cudnn_free(g.c.fns, g.made[i])
	}
	g.made = nil
}

// make returns a new descriptor without attributes.
func (g *graph) make(kind C.int) (desc C.uintptr_t) {
	if g.err == nil && g.check("cudnnBackendCreateDescriptor", C.cudnn_make(g.c.fns, g.c.d.drv.fns, g.c.d.ctx, kind, &desc)) {
		g.made = append(g.made, desc)
	}
	return desc
}

// descriptor returns a finalized descriptor.
func (g *graph) descriptor(kind C.int, attrs ...attribute) C.uintptr_t {
	desc := g.make(kind)
	for _, a := range attrs {
		if g.err == nil {
			g.check("cudnnBackendSetAttribute", C.cudnn_attribute(g.c.fns, g.c.d.drv.fns, g.c.d.ctx, desc, a.name, a.kind, C.int64_t(a.n), a.values))
		}
	}
	if g.err == nil {
		g.check("cudnnBackendFinalize", C.cudnn_finalize(g.c.fns, g.c.d.drv.fns, g.c.d.ctx, desc))
	}
	return desc
}

// tensor returns an array with further attributes.
func (g *graph) tensor(dt C.int, dims, strides dims4, attrs ...attribute) (a array, id int64) {
	g.nextID++
	attrs = append(attrs, enumAttr(attrTensorType, typeDataType, dt), intsAttr(attrTensorDims, dims[:]...), intsAttr(attrTensorStrides, strides[:]...),
		intsAttr(attrTensorID, g.nextID), intsAttr(attrTensorAlignment, packBytes))
	return array{g.descriptor(descTensor, attrs...), dt, dims, strides}, g.nextID
}

// memory returns an array in device memory. Its address is given when the graph is run, in the order of
// the calls of memory.
func (g *graph) memory(dt C.int, dims, strides dims4) array {
	a, id := g.tensor(dt, dims, strides)
	g.arrays = append(g.arrays, id)
	return a
}

// between returns a virtual array, which is internal to the graph.
func (g *graph) between(dt C.int, dims, strides dims4) array {
	a, _ := g.tensor(dt, dims, strides, boolAttr(attrTensorVirtual, true))
	return a
}

// number returns an array of one float32, which is read from the host.
func (g *graph) number(v float64) array {
	a, id := g.tensor(cudnnFloat32, dims4{1, 1, 1, 1}, dims4{1, 1, 1, 1}, boolAttr(attrTensorByValue, true))
	g.ids, g.values = append(g.ids, id), append(g.values, float32(v))
	return a
}

func (g *graph) add(kind C.int, attrs ...attribute) {
	g.ops = append(g.ops, g.descriptor(kind, attrs...))
}

// multiply adds the operation c = a·b to the graph.
func (g *graph) multiply(c, a, b array) {
	d := g.descriptor(descMatMul, enumAttr(attrMatMulMath, typeDataType, cudnnFloat32))
	g.add(descMatMulOperation, descAttr(attrMatMulA, a.desc), descAttr(attrMatMulB, b.desc), descAttr(attrMatMulC, c.desc), descAttr(attrMatMulDesc, d))
}

// reduce adds an operation to the graph: y becomes the sums, or the maximums, of x along the dimensions that y lacks.
func (g *graph) reduce(mode C.int, y, x array) {
	d := g.descriptor(descReduction, enumAttr(attrReductionMath, typeDataType, cudnnFloat32), enumAttr(attrReductionMode, typeReductionMode, mode))
	g.add(descReductionOperation, descAttr(attrReductionDesc, d), descAttr(attrReductionX, x.desc), descAttr(attrReductionY, y.desc))
}

// reshape adds an operation to the graph: y becomes x with other dimensions and strides.
func (g *graph) reshape(y, x array) {
	g.add(descReshapeOperation, descAttr(attrReshapeX, x.desc), descAttr(attrReshapeY, y.desc))
}

// pointwise adds the operation y = mode(in...) to the graph. math is the type in which it is computed. There are one to
// three operands.
func (g *graph) pointwise(mode, math C.int, y array, in ...array) {
	g.pointwiseBy(g.descriptor(descPointwise, enumAttr(attrPointwiseMode, typePointwiseMode, mode), enumAttr(attrPointwiseMath, typeDataType, math)), y, in...)
}

// index adds an operation to the graph: y becomes the index of each element of x along an axis.
func (g *graph) index(axis int64, y, x array) {
	g.pointwiseBy(g.descriptor(descPointwise, enumAttr(attrPointwiseMode, typePointwiseMode, pointwiseIndex),
		enumAttr(attrPointwiseMath, typeDataType, cudnnFloat32), intsAttr(attrPointwiseAxis, axis)), y, x)
}

func (g *graph) pointwiseBy(d C.uintptr_t, y array, in ...array) {
	attrs := []attribute{descAttr(attrPointwiseDesc, d), descAttr(attrPointwiseY, y.desc), floatAttr(attrPointwiseAlpha1, 1), floatAttr(attrPointwiseAlpha2, 1)}
	for i, name := range []C.int{attrPointwiseX, attrPointwiseB, attrPointwiseT}[:len(in)] {
		attrs = append(attrs, descAttr(name, in[i].desc))
	}
	g.add(descPointwiseOperation, attrs...)
}

// apply adds a pointwise operation in float32, whose result has the dimensions and strides of the first
// operand and is virtual.
func (g *graph) apply(mode C.int, in ...array) array {
	y := g.between(cudnnFloat32, in[0].dims, in[0].strides)
	g.pointwise(mode, cudnnFloat32, y, in...)
	return y
}

// cudnnPlan is a way to compute a graph.
type cudnnPlan struct {
	g *graph        // owns the plan's descriptor; nil once freed
	c *C.cudnn_plan // in C's memory
}

// errNoEngine reports that cuDNN has no kernel for a graph.
var errNoEngine = errors.New("cuDNN has no kernel for it")

// plan returns the first plan that cuDNN proposes and can build. This takes about 50 ms, or longer if cuDNN
// compiles a kernel. The plan owns the graph. If there is no plan, the graph is freed.
func (g *graph) plan() (*cudnnPlan, error) {
	plans, err := g.plans(1, nil)
	if err != nil {
		return nil, err
	}
	return plans[0], nil
}

// plans returns the plans that cuDNN proposes and can build, in order of expected speed: at least one, and no more than
// the parameter most allows. The function serves selects kernels by their numerical notes; nil selects all. The plans
// own the graph. If there is no plan, plans returns an error, and the graph is freed.
func (g *graph) plans(most int, serves func(notes []C.int) bool) (made []*cudnnPlan, err error) {
	defer func() {
		if err != nil {
			for _, p := range made {
				p.g = nil
				p.free()
			}
			g.free()
		}
	}()
	c := g.c
	whole := g.descriptor(descOperationGraph, descAttr(attrGraphOperations, g.ops...), attribute{attrGraphHandle, typeHandle, 1, unsafe.Pointer(&c.fns.handle)})
	const modeA = 3
	heuristic := g.descriptor(descEngineHeuristic, descAttr(attrHeuristicGraph, whole), enumAttr(attrHeuristicMode, typeHeuristicMode, modeA))
	var configs []C.uintptr_t
	if g.err == nil {
		n := g.query(heuristic, attrHeuristicResults, typeDescriptor, 0, nil)
		for range n {
			configs = append(configs, g.make(descEngineConfig))
		}
		if g.err == nil && n > 0 {
			configs = configs[:g.query(heuristic, attrHeuristicResults, typeDescriptor, n, unsafe.Pointer(&configs[0]))]
		}
	}
	if g.err != nil {
		return nil, g.err
	}
	var why error = errNoEngine
	for _, config := range configs {
		if len(made) == most {
			break
		}
		if serves != nil && !serves(g.notes(config)) {
			continue
		}
		plan := g.descriptor(descExecutionPlan, attribute{attrPlanHandle, typeHandle, 1, unsafe.Pointer(&c.fns.handle)}, descAttr(attrPlanConfig, config))
		if g.err == nil {
			p, err := g.planned(plan)
			if err != nil {
				return made, err
			}
			made = append(made, p)
			continue
		}
		why, g.err = g.err, nil
		if err := c.d.Err(); err != nil {
			return made, err
		}
	}
	if len(made) == 0 {
		return nil, why
	}
	return made, nil
}

// query reads at most n values of an attribute and returns their number.
func (g *graph) query(desc C.uintptr_t, name, kind C.int, n C.int64_t, into unsafe.Pointer) (got C.int64_t) {
	if g.err == nil {
		g.check("cudnnBackendGetAttribute", C.cudnn_query(g.c.fns, g.c.d.drv.fns, g.c.d.ctx, desc, name, kind, n, &got, into))
	}
	return got
}

// notes returns the numerical notes of an engine's configuration (cudnnBackendNumericalNote_t).
func (g *graph) notes(config C.uintptr_t) []C.int {
	engine := g.make(descEngine)
	g.query(config, attrConfigEngine, typeDescriptor, 1, unsafe.Pointer(&engine))
	var notes [16]C.int
	return notes[:g.query(engine, attrEngineNotes, typeNote, C.int64_t(len(notes)), unsafe.Pointer(&notes[0]))]
}

// planned completes the plan whose descriptor is desc.
func (g *graph) planned(desc C.uintptr_t) (*cudnnPlan, error) {
	var workspace C.int64_t
	if g.query(desc, attrPlanWorkspace, typeInt64, 1, unsafe.Pointer(&workspace)); g.err != nil {
		return nil, g.err
	}
	p := &cudnnPlan{g, (*C.cudnn_plan)(C.calloc(1, C.sizeof_cudnn_plan))}
	p.c.desc, p.c.workspace, p.c.arrays, p.c.scalars = desc, workspace, C.int(len(g.arrays)), C.int(len(g.ids))
	for i, id := range append(g.arrays, g.ids...) {
		p.c.ids[i] = C.int64_t(id)
	}
	for i, v := range g.values {
		p.c.values[i] = C.float(v)
	}
	return p, nil
}

func (p *cudnnPlan) free() {
	if p.g != nil {
		p.g.free()
	}
	C.free(unsafe.Pointer(p.c))
}

// run enqueues a plan. arrays holds the addresses of the graph's arrays in device memory, and work is the address of
// the plan's scratch memory.
func (p *cudnnPlan) run(s *gpuStream, arrays []uint64, work uint64) error {
	c := p.g.c
	if err := c.d.Err(); err != nil {
		return err
	}
	return s.enqueued(c.check("cudnnBackendExecute", C.cudnn_run(c.fns, c.d.drv.fns, c.d.ctx, p.c, s.handle,
		(*C.uint64_t)(unsafe.SliceData(arrays)), C.uint64_t(work))))
}
