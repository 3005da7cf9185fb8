//go:build cgo && linux

package cuda

/*
#include "driver.h"

// noescape keeps the arguments of a launch on the stack: every step launches many kernels.
#cgo noescape drv_launch
#cgo nocallback drv_launch
#cgo noescape drv_launch_early
#cgo nocallback drv_launch_early
*/
import "C"

import (
	"cmp"
	"embed"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unsafe"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
	"github.com/goddp/goddp/internal/kernels"
)

// large lists the sources that NVRTC compiles most slowly. Each is compiled as one program per floating-point
// type, and attention_mma.cu as one per type and head size.
var large = []string{"attention_mma.cu", "attention_plain.cu", "batchnorm.cu", "elementwise.cu", "loss.cu", "pooling.cu", "row_norm.cu", "update.cu"}

//go:embed kernels/*.cu
var sources embed.FS

// operands checks the operands of kernels.
var operands = operand.Types{device.Float32, device.Float64, device.Float16, device.BFloat16}

// perFloat holds the versions of a kernel, indexed by floating-point type.
type perFloat [device.BFloat16 + 1]C.uintptr_t

// perType holds the versions of a kernel, indexed by element type.
type perType [device.Uint8 + 1]C.uintptr_t

// kernelSet implements kernels.Kernels.
type kernelSet struct {
	values   kernels.Values
	d        *gpuDevice
	blas     *blasLt
	compiler string // the compiler's name and version, for the log
	tf32     bool
	early    bool                       // launchEarly lets kernels start early
	prepared map[any]bool               // the layers and feedForwards whose gradients' kernels are loaded
	custom   map[customKey]customModule // modules by first launch

	axpby, unary, unaryGrad, mseGrad, biasAct     perFloat
	swiGLU, swiGLUGrad                            perFloat
	binary                                        perFloat
	sumRuns, sumColumns, fold                     perFloat
	squares, mean, crossEntropy, crossEntropyGrad perFloat
	scaleBy, crossEntropyInPlace                  perFloat
	crossEntropyHeld                              perFloat
	softmax, softmaxGrad, dropout                 perFloat
	uniform, normal                               perFloat
	sgd, adamW, adamWNarrow, rmsProp              optimizer
	powerSum, scaleToNorm                         perFloat
	foldPowers                                    C.uintptr_t // for every type
	nonFinite, hash                               C.uintptr_t // for every type
	quantize, dequantize                          C.uintptr_t
	orthonormalize                                perFloat // for Float32 and Float64
	attention                                     attentionKernels
	dnn                                           *cudnn // nil before it is opened, and if there is no usable one
	triedCudnn                                    bool   // opening dnn was tried
	flash                                         flash
	convs                                         convs
	strided, transpose                            perFloat
	findExtreme                                   perFloat
	compare                                       perType
	maskedCopy                                    perSize
	gather, addRuns, joinRuns                     perFloat
	sortCount, sortPlace, selectLabels            C.uintptr_t // for every type
	stridedBits, transposeBits                    perSize
	rotate                                        perFloat
	writeRows, attendLast                         perFloat
	oneRow                                        perFloat // for the 16-bit types
	groupNorm, groupNormGrad                      perFloat
	normPlanes, normColumns, normFold             perFloat
	rowNorm, rowNormGrad                          [len(rowHeld)]perFloat // without Float64
	rowNormFold                                   perFloat               // without Float64
	batchNorm, batchNormGrad                      perFloat
	batchNormWide, batchNormGradWide              perFloat
	batchMomentsWide, batchSumsWide, batchFold    perFloat
	im2col, col2im, toColumns, fromColumns        perFloat
	foldImages, unfoldWeight                      perFloat
	maxPool, maxPoolGrad, avgPool, avgPoolGrad    perFloat
	maxPoolWide, maxPoolGradWide, avgPoolGradWide perFloat
	mergeMoments, trackMoments                    perFloat // for Float32 and Float64
	fill                                          perType
	copy                                          [device.Uint8 + 1]perType // indexed by the destination's type, then by the source's
}

// Values returns the state that other packages keep for the device.
func (k *kernelSet) Values() *kernels.Values { return &k.values }

// newKernels compiles and loads all kernels. Otherwise CUDA would load a kernel at its first launch,
// and loading can wait for all work on the device, which may include a collective that waits for a
// peer.
func newKernels(d *gpuDevice, o Options) (_ *kernelSet, err error) {
	k := &kernelSet{d: d, tf32: o.AllowTF32, early: d.props.major >= 9 && d.props.driver >= 12030, prepared: map[any]bool{}, custom: map[customKey]customModule{}}
	k.flash = flash{k: k, ways: map[flashShape]*flashWay{}, faults: map[flashKind]error{}, anyOrder: o.Nondeterministic, maxWork: flashWork, maxWait: flashWait}
	k.convs = convs{k: k, plans: map[convKey]*cudnnPlan{}, tune: o.TuneConvolutions}
	defer func() {
		if err != nil {
			err = errors.Join(err, k.close())
		}
	}()
	c, err := openCompiler()
	if err != nil {
		return nil, err
	}
	defer c.close()
	k.compiler = c.String()
	var programs []program
	for name, functions := range k.files() {
		text := source(name)
		if strings.HasPrefix(name, "attention_") {
			text = source("attention.cu") + text
		}
		p := program{name: name, text: text, functions: functions}
		programs = append(programs, p.splitSource()...)
	}
	// Longer sources usually take NVRTC longer. They start first, so that no long compilation is left
	// at the end with the other cores idle.
	slices.SortFunc(programs, func(a, b program) int { return cmp.Compare(len(b.text), len(a.text)) })
	if err := d.build(d.life, c, programs); err != nil {
		return nil, err
	}
	if k.blas, err = openBlasLt(d); err != nil {
		return nil, err
	}
	if _, err := d.compute.workspace(); err != nil {
		return nil, err
	}
	return k, nil
}

// splitSource returns the programs that one of this package's sources is compiled as: one if the
// source is small, several if it is large.
func (p program) splitSource() []program {
	if !slices.Contains(large, p.name) {
		return []program{p}
	}
	types := p.split(typeParts())
	if p.name != "attention_mma.cu" {
		return types
	}
	var out []program
	for _, t := range types {
		out = append(out, t.split(headParts())...)
	}
	return out
}

// source returns the text of an embedded source file.
func source(name string) string {
	text, err := sources.ReadFile("kernels/" + name)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// files lists the functions of every source file, with the places for their handles.
func (k *kernelSet) files() map[string]map[string]*C.uintptr_t {
	floats := func(kernels map[string]*perFloat) map[string]*C.uintptr_t {
		out := map[string]*C.uintptr_t{}
		for name, versions := range kernels {
			for _, dt := range operands {
				out[name+"_"+dt.String()] = &versions[dt]
			}
		}
		return out
	}
	copies := map[string]*C.uintptr_t{}
	for to := device.Float32; to <= device.Uint8; to++ {
		copies["fill_"+to.String()] = &k.fill[to]
		for from := device.Float32; from <= device.Uint8; from++ {
			copies["copy_"+to.String()+"_"+from.String()] = &k.copy[to][from]
		}
	}
	layout := floats(map[string]*perFloat{"strided": &k.strided, "transpose": &k.transpose})
	for _, size := range []int{1, 2, 4, 8} {
		layout[fmt.Sprint("strided_u", 8*size)] = &k.stridedBits[size]
		layout[fmt.Sprint("transpose_u", 8*size)] = &k.transposeBits[size]
	}
	selection := floats(map[string]*perFloat{"find_extreme": &k.findExtreme})
	for dt := device.Float32; dt <= device.Uint8; dt++ {
		selection["compare_"+dt.String()] = &k.compare[dt]
	}
	for _, size := range []int{1, 2, 4, 8} {
		selection[fmt.Sprint("masked_copy_u", 8*size)] = &k.maskedCopy[size]
	}
	indexing := floats(map[string]*perFloat{"gather": &k.gather, "add_runs": &k.addRuns, "join_runs": &k.joinRuns})
	indexing["sort_count"], indexing["sort_place"], indexing["select_labels"] = &k.sortCount, &k.sortPlace, &k.selectLabels
	update := floats(map[string]*perFloat{"sgd": &k.sgd.own, "adamw": &k.adamW.own, "rmsprop": &k.rmsProp.own})
	update["adamw_narrow_float32"] = &k.adamWNarrow.own[device.Float32]
	for name, o := range map[string]*optimizer{"sgd": &k.sgd, "adamw": &k.adamW, "adamw_narrow": &k.adamWNarrow, "rmsprop": &k.rmsProp} {
		for _, dt := range []device.DType{device.Float16, device.BFloat16} {
			update[name+"_master_"+dt.String()] = &o.master[dt]
			update[name+"_master_wide_"+dt.String()] = &o.masterWide[dt]
		}
	}
	clipping := floats(map[string]*perFloat{"power_sum": &k.powerSum, "scale_to_norm": &k.scaleToNorm})
	clipping["fold_powers"] = &k.foldPowers
	normalization := floats(map[string]*perFloat{
		"group_norm": &k.groupNorm, "group_norm_grad": &k.groupNormGrad,
		"norm_planes": &k.normPlanes, "norm_columns": &k.normColumns, "norm_fold": &k.normFold,
	})
	for _, dt := range []device.DType{device.Float32, device.Float64} {
		normalization["merge_moments_"+dt.String()] = &k.mergeMoments[dt]
		normalization["track_moments_"+dt.String()] = &k.trackMoments[dt]
	}
	rowNorm := map[string]*C.uintptr_t{}
	for _, dt := range []device.DType{device.Float32, device.Float16, device.BFloat16} {
		for i, held := range rowHeld {
			rowNorm[fmt.Sprintf("row_norm_%d_%v", held, dt)] = &k.rowNorm[i][dt]
			rowNorm[fmt.Sprintf("row_norm_grad_%d_%v", held, dt)] = &k.rowNormGrad[i][dt]
		}
		rowNorm["row_norm_fold_"+dt.String()] = &k.rowNormFold[dt]
	}
	return map[string]map[string]*C.uintptr_t{
		"elementwise.cu": floats(map[string]*perFloat{
			"axpby": &k.axpby, "unary": &k.unary, "unary_grad": &k.unaryGrad, "mse_grad": &k.mseGrad, "scale_by": &k.scaleBy, "bias_act": &k.biasAct,
			"swiglu": &k.swiGLU, "swiglu_grad": &k.swiGLUGrad,
		}),
		"broadcast.cu": floats(map[string]*perFloat{"binary": &k.binary}),
		"reduce.cu":    floats(map[string]*perFloat{"sum_runs": &k.sumRuns, "sum_columns": &k.sumColumns, "fold": &k.fold}),
		"loss.cu": floats(map[string]*perFloat{
			"squares": &k.squares, "mean": &k.mean, "cross_entropy": &k.crossEntropy, "cross_entropy_grad": &k.crossEntropyGrad,
			"cross_entropy_in_place": &k.crossEntropyInPlace, "cross_entropy_held": &k.crossEntropyHeld,
		}),
		"layout.cu":    layout,
		"softmax.cu":   floats(map[string]*perFloat{"softmax": &k.softmax, "softmax_grad": &k.softmaxGrad}),
		"selection.cu": selection,
		"indexing.cu":  indexing,
		"update.cu":    update,
		"clipping.cu":  clipping,
		"random.cu":    floats(map[string]*perFloat{"uniform": &k.uniform, "normal": &k.normal, "dropout": &k.dropout}),
		"copy.cu":      copies,
		"inspect.cu":   {"nonfinite": &k.nonFinite, "hash": &k.hash},
		"quantized.cu": {"quantize": &k.quantize, "dequantize": &k.dequantize},

		"attention_plain.cu": floats(k.attention.plainFunctions()),
		"attention_mma.cu":   k.attention.mmaFunctions(),
		"rotary.cu":          floats(map[string]*perFloat{"rotate": &k.rotate}),
		"one_row.cu":         {"one_row_float16": &k.oneRow[device.Float16], "one_row_bfloat16": &k.oneRow[device.BFloat16]},
		"decoding.cu":        floats(map[string]*perFloat{"write_rows": &k.writeRows, "attend_last": &k.attendLast}),

		"normalization.cu": normalization,
		"row_norm.cu":      rowNorm,
		"batchnorm.cu": floats(map[string]*perFloat{
			"batch_norm": &k.batchNorm, "batch_norm_grad": &k.batchNormGrad, "batch_norm_wide": &k.batchNormWide,
			"batch_norm_grad_wide": &k.batchNormGradWide, "batch_moments_wide": &k.batchMomentsWide, "batch_sums_wide": &k.batchSumsWide, "batch_fold": &k.batchFold,
		}),
		"convolution.cu": floats(map[string]*perFloat{
			"im2col": &k.im2col, "col2im": &k.col2im, "to_columns": &k.toColumns, "from_columns": &k.fromColumns,
			"fold_images": &k.foldImages, "unfold_weight": &k.unfoldWeight,
		}),
		"pooling.cu": floats(map[string]*perFloat{
			"max_pool": &k.maxPool, "max_pool_grad": &k.maxPoolGrad, "max_pool_wide": &k.maxPoolWide, "max_pool_grad_wide": &k.maxPoolGradWide,
			"avg_pool_grad_wide": &k.avgPoolGradWide, "avg_pool": &k.avgPool, "avg_pool_grad": &k.avgPoolGrad,
		}),

		"orthonormal.cu": {
			"orthonormalize_float32": &k.orthonormalize[device.Float32], "orthonormalize_float64": &k.orthonormalize[device.Float64],
		},
	}
}

// close closes the libraries of an idle device.
func (k *kernelSet) close() error {
	if k == nil {
		return nil
	}
	k.flash.close()
	k.convs.close()
	var err error
	if k.dnn != nil {
		err = k.dnn.close()
	}
	if k.blas != nil {
		err = errors.Join(err, k.blas.close())
	}
	return err
}

// threads is the default number of threads in a block.
const threads = 256

// grid is the number of blocks along x, y and z, and the number of threads in a block along x and
// y.
type grid struct{ x, y, z, threadsX, threadsY int }

// flat returns a grid for n independent threads. The number of blocks is limited to a few times what
// fills the GPU; if n is larger, each thread loops.
func (k *kernelSet) flat(n int) grid {
	blocks := min(ceil(n, threads), k.d.props.sms*64)
	return grid{blocks, 1, 1, threads, 1}
}

func ceil(n, by int) int { return (n + by - 1) / by }

// launch enqueues a kernel whose only parameter is the structure at args, of the given size.
func (k *kernelSet) launch(s *gpuStream, f C.uintptr_t, g grid, args unsafe.Pointer, size uintptr) error {
	return k.launchDeep(s, f, g, 1, args, size)
}

// span is memory from an address up to another one.
type span struct{ from, to uint64 }

// spans returns the memory of tensors.
func (k *kernelSet) spans(ts ...device.Tensor) []span {
	out := make([]span, len(ts))
	for i, t := range ts {
		out[i] = span{k.addr(t), k.addr(t) + uint64(t.Bytes())}
	}
	return out
}

// launchEarly is launch for a kernel that calls await_earlier of kernels/prelude.cu. Before this call the kernel reads
// nothing but reads. It writes nothing but writes. If launchEarly also launched the kernel in front, and that does not write
// reads, the GPU starts the kernel before the one in front has ended.
func (k *kernelSet) launchEarly(s *gpuStream, f C.uintptr_t, g grid, args unsafe.Pointer, size uintptr, reads, writes []span) error {
	before := s.wrote.Load()
	early := k.early && before != nil && !s.shared.Load() && !slices.ContainsFunc(*before, func(w span) bool {
		return slices.ContainsFunc(reads, func(r span) bool { return w.from < r.to && r.from < w.to })
	})
	if !early {
		err := k.launch(s, f, g, args, size)
		s.wrote.Store(&writes)
		return err
	}
	d := k.d
	if err := d.Err(); err != nil {
		return err
	}
	err := s.enqueued(d.check("cuLaunchKernelEx", C.drv_launch_early(d.drv.fns, d.ctx, f, s.handle, C.uint(g.x), C.uint(g.y), C.uint(g.z),
		C.uint(g.threadsX), C.uint(g.threadsY), 1, args, C.size_t(size))))
	s.wrote.Store(&writes)
	return err
}

// launchDeep is launch with threadsZ threads along z per block.
func (k *kernelSet) launchDeep(s *gpuStream, f C.uintptr_t, g grid, threadsZ int, args unsafe.Pointer, size uintptr) error {
	d := k.d
	if err := d.Err(); err != nil {
		return err
	}
	return s.enqueued(d.check("cuLaunchKernel", C.drv_launch(d.drv.fns, d.ctx, f, s.handle, C.uint(g.x), C.uint(g.y), C.uint(g.z),
		C.uint(g.threadsX), C.uint(g.threadsY), C.uint(threadsZ), args, C.size_t(size))))
}

// flags returns the address and number of the skip flags of an update. Both are 0 if t is the zero
// Tensor.
func (k *kernelSet) flags(t device.Tensor) (addr, n uint64) {
	if t.IsZero() {
		return 0, 0
	}
	return k.addr(t), uint64(t.Len())
}

// optional returns the address of an operand, or 0 if it is absent.
func (k *kernelSet) optional(t device.Tensor) uint64 {
	if t.IsZero() {
		return 0
	}
	return k.addr(t)
}

// addr returns the address of an operand. It panics if the operand is in host memory, because a
// kernel that accessed it would make the device lost.
func (k *kernelSet) addr(t device.Tensor) uint64 {
	if t.Buf.Host() != nil {
		panic(fmt.Errorf("%s: operand %v is in host memory, want device memory", k.d.name, t))
	}
	return uint64(t.Buf.Addr())
}

// packBytes is the number of bytes that a thread moves at once.
const packBytes = 16

// packed reports whether all addresses are multiples of packBytes.
func packed(addrs ...uint64) bool {
	for _, a := range addrs {
		if a%packBytes != 0 {
			return false
		}
	}
	return true
}

// flag returns a boolean as a kernel's parameter.
func flag(b bool) int32 {
	if b {
		return 1
	}
	return 0
}
