//go:build cgo && linux

package cuda

// #include "dnn.h"
import "C"

import (
	"errors"
	"fmt"
	"slices"
	"time"
	"unsafe"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
)

// convs computes convolutions with cuDNN, for prepared shapes.
type convs struct {
	k      *kernelSet
	tune   bool                   // whether cuDNN's kernels are timed to select the fastest
	plans  map[convKey]*cudnnPlan // a nil plan means this package's kernels
	passes int                    // the number of passes computed by cuDNN
}

// convKey holds the properties on which a plan depends.
type convKey struct {
	dt   device.DType
	z    operand.ConvSizes
	pass convPass
	adds bool // whether the plan accumulates
}

// convPass says which operand of a convolution a plan computes: the index in convOperands.
type convPass int

const (
	convGradInput convPass = iota
	convGradWeight
	convForward
)

func (p convPass) String() string {
	return [...]string{"gradient of the images", "gradient of the weight", "result"}[p]
}

// convOperands are images, weight and result, or their gradients.
type convOperands [3]device.Tensor

const (
	// maxConvPlans is the maximum number of plans that are kept.
	maxConvPlans = 1024
	// convCandidates is the maximum number of cuDNN's kernels that race for a pass.
	convCandidates = 6
	// convWork is the maximum scratch memory of a pass, in bytes.
	convWork = 512 << 20
)

var addTo = device.Accum{Alpha: 1, Beta: 1}

// compute computes one operand from the others with cuDNN. It returns false if this package's kernels must compute it,
// for example because memory is short. In that case it has not written to the operand.
func (c *convs) compute(s *gpuStream, pass convPass, acc device.Accum, ops convOperands, z operand.ConvSizes) (done bool, err error) {
	if done, err = c.computeFolded(s, pass, acc, ops, z); errors.Is(err, device.ErrOutOfMemory) {
		return false, nil
	}
	return done, err
}

// computeFolded computes one operand from the others with cuDNN, using folded images if there is a plan for them.
func (c *convs) computeFolded(s *gpuStream, pass convPass, acc device.Accum, ops convOperands, z operand.ConvSizes) (done bool, err error) {
	if !folds(ops[0].DType, pass, z) || c.plans[keyOf(ops[0].DType, pass, false, z)] == nil {
		return c.computeAsIs(s, pass, acc, ops, z)
	}
	err = c.folded(s, pass, ops, z, func(small convOperands, fold operand.ConvSizes) (err error) {
		if done, err = c.computeAsIs(s, pass, device.Store, small, fold); err == nil && done && pass == convGradWeight {
			err = c.fold(s, &c.k.unfoldWeight, ops[convGradWeight], small[convGradWeight], acc, z, fold, false, ops[convGradWeight].Len())
		}
		return err
	})
	return done, err
}

// keyOf returns the key of the plan for a pass.
func keyOf(dt device.DType, pass convPass, adds bool, z operand.ConvSizes) convKey {
	if folds(dt, pass, z) {
		z = foldedSizes(z)
	}
	return convKey{dt, z, pass, adds}
}

// pixelChannels: cuDNN's fast 16-bit kernels need a number of channels that is a multiple of pixelChannels.
const pixelChannels = packBytes / 2

// folds reports whether a pass is computed from folded images. Images with few channels, such as RGB input, would
// leave cuDNN's fast kernels mostly idle. Folding turns each block of stride × stride pixels into one pixel with the
// channels of all of them, and adds the padding as zeros. The convolution then has no stride and no padding.
func folds(dt device.DType, pass convPass, z operand.ConvSizes) bool {
	return pass != convGradInput && dt.Size() == 2 && z.ChannelsLast && z.Groups == 1 && z.Dilation == [2]int{1, 1} &&
		z.C > 0 && z.C < pixelChannels && z.C*z.Stride[0]*z.Stride[1] <= 2*pixelChannels
}

func foldedSizes(z operand.ConvSizes) operand.ConvSizes {
	z.C = ceil(z.C*z.Stride[0]*z.Stride[1], pixelChannels) * pixelChannels
	z.Kernel = [2]int{ceil(z.Kernel[0], z.Stride[0]), ceil(z.Kernel[1], z.Stride[1])}
	z.InGroup, z.H, z.W = z.C, z.OH+z.Kernel[0]-1, z.OW+z.Kernel[1]-1
	z.Stride, z.Padding = [2]int{1, 1}, [2]int{}
	return z
}

// folded calls f with the images and the weight in folded form (see folds). In convGradWeight the folded weight is
// the output, so its content is undefined when f is called.
func (c *convs) folded(s *gpuStream, pass convPass, ops convOperands, z operand.ConvSizes, f func(small convOperands, fold operand.ConvSizes) error) error {
	fold, small := foldedSizes(z), ops
	small[0] = device.Tensor{DType: ops[0].DType, Shape: device.Shape{fold.N, fold.H, fold.W, fold.C}}
	small[1] = device.Tensor{DType: ops[0].DType, Shape: device.Shape{fold.O, fold.Kernel[0], fold.Kernel[1], fold.C}}
	scratch, err := c.k.scratch(&small[0], &small[1])
	if err != nil {
		return err
	}
	defer c.k.freeScratch(s, scratch)
	if err := c.fold(s, &c.k.foldImages, small[0], ops[0], device.Store, z, fold, true, small[0].Len()/pixelChannels); err != nil {
		return err
	}
	if pass != convGradWeight {
		if err := c.fold(s, &c.k.foldImages, small[1], ops[1], device.Store, z, fold, false, small[1].Len()/pixelChannels); err != nil {
			return err
		}
	}
	return f(small, fold)
}

// fold runs a kernel f with n threads. f converts images or weights to or from their folded form.
func (c *convs) fold(s *gpuStream, f *perFloat, to, from device.Tensor, acc device.Accum, z, fold operand.ConvSizes, images bool, n int) error {
	a := convArgs{
		to: c.k.addr(to), from: c.k.addr(from), acc: acc, c: uint64(z.C), group: uint64(fold.C), sh: int64(z.Stride[0]), sw: int64(z.Stride[1]),
		images: uint64(z.O), h: uint64(z.Kernel[0]), w: uint64(z.Kernel[1]), oh: uint64(fold.Kernel[0]), ow: uint64(fold.Kernel[1]),
	}
	if images {
		a.images, a.h, a.w, a.oh, a.ow = uint64(z.N), uint64(z.H), uint64(z.W), uint64(fold.H), uint64(fold.W)
		a.ph, a.pw = int64(z.Padding[0]), int64(z.Padding[1])
	}
	return c.k.launch(s, f[to.DType], c.k.flat(n), unsafe.Pointer(&a), unsafe.Sizeof(a))
}

func (c *convs) computeAsIs(s *gpuStream, pass convPass, acc device.Accum, ops convOperands, z operand.ConvSizes) (done bool, err error) {
	plan := c.plans[keyOf(ops[0].DType, pass, false, z)]
	if plan == nil || !c.packed(ops) {
		return false, nil
	}
	if acc == addTo {
		if adds := c.plans[keyOf(ops[0].DType, pass, true, z)]; adds != nil {
			plan, acc = adds, device.Store
		}
	}
	if acc == device.Store {
		return true, c.run(s, plan, ops)
	}
	dst := ops[pass]
	scratch, err := c.k.scratch(&ops[pass])
	if err != nil {
		return true, err
	}
	defer c.k.freeScratch(s, scratch)
	if err := c.run(s, plan, ops); err != nil {
		return true, err
	}
	return true, c.k.Axpby(s, dst, acc, ops[pass])
}

// run enqueues a plan.
func (c *convs) run(s *gpuStream, plan *cudnnPlan, ops convOperands) error {
	work, err := s.workspace()
	if err != nil {
		return err
	}
	at := uint64(work.Addr())
	if n := int(plan.c.workspace); n > workspaceSize {
		work := device.Tensor{DType: device.Uint8, Shape: device.Shape{n}}
		scratch, err := c.k.scratch(&work)
		if err != nil {
			return err
		}
		defer c.k.freeScratch(s, scratch)
		at = c.k.addr(work)
	}
	c.passes++
	return plan.run(s, []uint64{c.k.addr(ops[0]), c.k.addr(ops[1]), c.k.addr(ops[2])}, at)
}

func (c *convs) packed(ops convOperands) bool {
	return packed(c.k.addr(ops[0]), c.k.addr(ops[1]), c.k.addr(ops[2]))
}

// wants reports whether the plan for a key is missing and can be built now.
func (c *convs) wants(s *gpuStream, key convKey) (bool, error) {
	if _, known := c.plans[key]; known || s != c.k.d.compute || len(c.plans) == maxConvPlans || !serves(key) {
		return false, nil
	}
	captured, err := s.capturing()
	return err == nil && !captured && c.k.cudnn() != nil, err
}

// prepare builds the plan for a pass at the first call for its shape, and overwrites the operand that the pass
// computes. If that fails, or if the shape is first seen during a graph capture, this package's kernels are used. If
// memory is short, prepare does nothing, and the next call retries.
func (c *convs) prepare(s *gpuStream, pass convPass, adds bool, ops convOperands, z operand.ConvSizes) error {
	key := keyOf(ops[0].DType, pass, adds, z)
	if wanted, err := c.wants(s, key); !wanted || err != nil || !c.packed(ops) {
		return err
	}
	if folds(key.dt, pass, z) {
		err := c.folded(s, pass, ops, z, func(small convOperands, fold operand.ConvSizes) error {
			return c.prepare(s, pass, adds, small, fold)
		})
		if errors.Is(err, device.ErrOutOfMemory) {
			return nil
		}
		return err
	}
	plan, err := c.choose(s, c.k.cudnn(), key, ops)
	if lost := c.k.d.Err(); lost != nil {
		return lost
	}
	if errors.Is(err, device.ErrOutOfMemory) {
		return nil
	}
	if err != nil && !adds { // without an accumulating plan, another kernel adds the result
		c.k.d.log.Info("cuda: not using cuDNN for a convolution", "device", c.k.d.name, "type", key.dt, "pass", pass,
			"images", []int{z.N, z.C, z.H, z.W}, "channels", z.O, "kernel", z.Kernel, "groups", z.Groups, "channels last", z.ChannelsLast, "because", err)
	}
	if c.plans[key] = plan; len(c.plans) == maxConvPlans {
		c.k.d.log.Info("cuda: not using cuDNN for convolutions of further shapes", "plans", maxConvPlans)
	}
	return nil
}

// serves reports whether cuDNN may have a kernel for a pass.
func serves(key convKey) bool {
	z := &key.z
	return key.dt != device.Float64 && min(z.N, z.C, z.H, z.W, z.O) > 0
}

// choose builds the plans that cuDNN proposes, and runs each once to load its kernels. It returns the fastest plan, or
// without tuning the first one. If no plan works, it returns an error, preferably one about too little memory, because
// the next call may have more memory. The caller must check whether the device has failed.
func (c *convs) choose(s *gpuStream, lib *cudnn, key convKey, ops convOperands) (*cudnnPlan, error) {
	most := 1
	if c.tune {
		most = convCandidates
	}
	plans, err := lib.convolution(key).plans(most, func(notes []C.int) bool { return c.suits(key.dt, notes) })
	if err != nil {
		return nil, err
	}
	g := plans[0].g
	var works []*cudnnPlan
	var why error
	for _, p := range plans {
		if p.c.workspace > convWork {
			err = fmt.Errorf("cuDNN needs %d bytes of scratch memory, but the limit is %d", p.c.workspace, convWork)
		} else if err = c.run(s, p, ops); err == nil {
			works = append(works, p)
			continue
		}
		if why == nil || errors.Is(err, device.ErrOutOfMemory) {
			why = err
		}
		p.discard()
	}
	if len(works) == 0 {
		g.free() // no plan has enqueued work
		return nil, why
	}
	best := 0
	if len(works) > 1 {
		best = c.k.d.race(s, len(works), 3*time.Millisecond, func(i int) error { return c.run(s, works[i], ops) })
	}
	for i, p := range works {
		if i != best {
			p.discard()
		}
	}
	return works[best], nil
}

// discard frees a plan of a graph that other plans use. Its work may still be queued: the descriptors are freed
// with the graph.
func (p *cudnnPlan) discard() { C.free(unsafe.Pointer(p.c)) }

// suits reports whether an engine with these notes accumulates in float32 and is deterministic. Without TF32 it must
// not round float32 operands. FFT and Winograd engines are not used, because a result's error then depends on
// unrelated elements.
func (c *convs) suits(dt device.DType, notes []C.int) bool {
	const (
		tensorCore = iota
		downConvertInputs
		reducedPrecisionReduction
		fft
		nondeterministic
		winograd
		winograd13x13 = 8
	)
	return !slices.ContainsFunc(notes, func(n C.int) bool {
		switch {
		case n == tensorCore || n == downConvertInputs:
			return dt == device.Float32 && !c.k.tf32
		case n == reducedPrecisionReduction:
			return true
		}
		return n >= fft && n <= winograd13x13
	})
}

func (c *convs) close() {
	for _, p := range c.plans {
		if p != nil {
			p.free()
		}
	}
}

// convolution describes a pass, with the arrays in the order of convOperands.
func (c *cudnn) convolution(key convKey) *graph {
	const (
		mathType, mode, dilations, strides, after, before, axes = 100, 101, 102, 103, 104, 105, 106
		crossCorrelation                                        = 1
	)
	g, z := &graph{c: c}, &key.z
	image := func(n, c, h, w int) array {
		dims := dims4{int64(n), int64(c), int64(h), int64(w)}
		steps := dims.dense()
		if z.ChannelsLast {
			steps = dims4{dims[1] * dims[2] * dims[3], 1, dims[1] * dims[3], dims[1]}
		}
		return g.memory(cudnnType(key.dt), dims, steps)
	}
	x, w, y := image(z.N, z.C, z.H, z.W), image(z.O, z.InGroup, z.Kernel[0], z.Kernel[1]), image(z.N, z.O, z.OH, z.OW)
	both := func(name C.int, v [2]int) attribute { return intsAttr(name, int64(v[0]), int64(v[1])) }
	conv := g.descriptor(descConvolution, enumAttr(mathType, typeDataType, cudnnFloat32), enumAttr(mode, typeConvolution, crossCorrelation), intsAttr(axes, 2),
		both(before, z.Padding), both(after, z.Padding), both(strides, z.Stride), both(dilations, z.Dilation))
	var beta float32
	if key.adds {
		beta = 1
	}
	switch key.pass {
	case convForward:
		g.add(descConvolutionForward, floatAttr(700, 1), floatAttr(701, beta), descAttr(702, conv), descAttr(703, w.desc), descAttr(704, x.desc), descAttr(705, y.desc))
	case convGradInput:
		g.add(descConvolutionData, floatAttr(706, 1), floatAttr(707, beta), descAttr(708, conv), descAttr(709, w.desc), descAttr(710, x.desc), descAttr(711, y.desc))
	case convGradWeight:
		g.add(descConvolutionFilter, floatAttr(712, 1), floatAttr(713, beta), descAttr(714, conv), descAttr(715, w.desc), descAttr(716, x.desc), descAttr(717, y.desc))
	}
	return g
}

// prepareGrads makes the plans for the gradients of a convolution. To do so it computes the gradients into scratch
// memory.
func (c *convs) prepareGrads(s *gpuStream, ops convOperands, z operand.ConvSizes) error {
	for _, p := range []struct {
		pass convPass
		adds bool
	}{{convGradInput, false}, {convGradInput, true}, {convGradWeight, false}} {
		wanted, err := c.wants(s, keyOf(ops[0].DType, p.pass, p.adds, z))
		if err != nil {
			return err
		}
		if !wanted {
			continue
		}
		into := ops
		scratch, err := c.k.scratch(&into[p.pass])
		if errors.Is(err, device.ErrOutOfMemory) {
			continue // the next call may have the memory
		}
		if err != nil {
			return err
		}
		err = c.prepare(s, p.pass, p.adds, into, z)
		c.k.freeScratch(s, scratch)
		if err != nil {
			return err
		}
	}
	return nil
}
