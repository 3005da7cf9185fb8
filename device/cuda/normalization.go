//go:build cgo && linux

package cuda

import (
	"unsafe"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
	"github.com/goddp/goddp/internal/kernels"
)

// normArgs has the layout of the structure Norm in kernels/normalization.cu.
type normArgs struct {
	dst, x, g, addend, mean, variance, weight, bias, sums, count, part, mask uint64
	n, c, l                                                                  uint64
	groups                                                                   uint64
	centered                                                                 uint64
	chunk, chunks                                                            uint64
	mode                                                                     uint64
	eps, factor                                                              float64
	acc                                                                      device.Accum
	dweight, dbias                                                           uint64
	accWeight, accBias                                                       device.Accum
}

// These are the modes of the kernel that computes sums, as in kernels/normalization.cu.
const (
	sumX = iota
	sumSquares
	sumGrads
	sumParameters
)

const (
	sumBytes       = 16                       // size of a chunk's sums per channel
	maxSumChannels = workspaceSize / sumBytes // the maximum number of channels whose sums of one chunk fit in a workspace
)

// mergeArgs has the layout of the structure Merge in kernels/normalization.cu.
type mergeArgs struct {
	mean, variance, count, parts, batches uint64
	ranks, c                              uint64
	momentum                              float64
}

// trackArgs has the layout of the structure Track in kernels/normalization.cu.
type trackArgs struct {
	to             mergeArgs
	mean, variance uint64
}

func newNormArgs(z operand.NormSizes, p kernels.Norm) normArgs {
	return normArgs{
		n: uint64(z.N), c: uint64(z.C), l: uint64(z.L), groups: uint64(p.Groups), centered: uint64(flag(!p.Uncentered)),
		eps: p.Eps, factor: 1, acc: device.Store,
	}
}

func (k *kernelSet) norm(st device.Stream, f *perFloat, dt device.DType, g grid, a normArgs) error {
	return k.launch(k.d.stream(st), f[dt], g, unsafe.Pointer(&a), unsafe.Sizeof(a))
}

func (k *kernelSet) GroupNorm(s device.Stream, dst, mean, variance, x, weight, bias device.Tensor, p kernels.Norm) error {
	z := operands.GroupNorm(dst, mean, variance, x, weight, bias, p)
	rows, cols := z.Rows(p)
	if rows == 0 {
		return nil
	}
	a := rowNormArgs{dst: k.addr(dst), x: k.addr(x), mean: k.addr(mean), variance: k.addr(variance), weight: k.addr(weight), bias: k.addr(bias)}
	if a.fit(x.DType, z, p) {
		return k.rowNormForward(s, x.DType, a)
	}
	b := newNormArgs(z, p)
	b.dst, b.x, b.mean, b.variance, b.weight, b.bias = a.dst, a.x, a.mean, a.variance, a.weight, a.bias
	return k.norm(s, &k.groupNorm, x.DType, grid{min(rows, 1<<20), 1, 1, rowThreads(cols), 1}, b)
}

func (k *kernelSet) AddGroupNorm(s device.Stream, dst, sum, mean, variance, x, y, weight, bias device.Tensor, p kernels.Norm) error {
	z := operands.AddGroupNorm(dst, sum, mean, variance, x, y, weight, bias, p)
	a := rowNormArgs{
		dst: k.addr(dst), sum: k.addr(sum), x: k.addr(x), y: k.addr(y),
		mean: k.addr(mean), variance: k.addr(variance), weight: k.addr(weight), bias: k.addr(bias),
	}
	if a.fit(x.DType, z, p) {
		return k.rowNormForward(s, x.DType, a)
	}
	if err := k.Binary(s, kernels.Add, sum, x, y); err != nil {
		return err
	}
	return k.GroupNorm(s, dst, mean, variance, sum, weight, bias, p)
}

func (k *kernelSet) GroupNormGrad(s device.Stream, to kernels.NormGrads, g, x, mean, variance, weight device.Tensor, p kernels.Norm) error {
	z := operands.GroupNormGrad(to, g, x, mean, variance, weight, p)
	a := rowNormArgs{
		dst: k.addr(to.X), g: k.addr(g), x: k.addr(x), addend: k.addr(to.Addend), mean: k.addr(mean), variance: k.addr(variance), weight: k.addr(weight),
		dweight: k.addr(to.Weight), dbias: k.addr(to.Bias), acc: to.AccX, accWeight: to.AccWeight, accBias: to.AccBias,
	}
	if a.fit(x.DType, z, p) {
		return k.rowNormBackward(s, x.DType, a)
	}
	b := newNormArgs(z, p)
	b.g, b.x, b.mean, b.variance, b.weight = a.g, a.x, a.mean, a.variance, a.weight
	if !to.Weight.IsZero() || !to.Bias.IsZero() {
		sums := b
		sums.mode, sums.dweight, sums.dbias, sums.accWeight, sums.accBias = sumParameters, a.dweight, a.dbias, a.accWeight, a.accBias
		if err := k.normSums(s, x.DType, sums); err != nil {
			return err
		}
	}
	if to.X.Len() == 0 {
		return nil
	}
	rows, cols := z.Rows(p)
	b.dst, b.addend, b.acc = a.dst, a.addend, a.acc
	return k.norm(s, &k.groupNormGrad, x.DType, grid{min(rows, 1<<20), 1, 1, rowThreads(cols), 1}, b)
}

func (k *kernelSet) Moments(s device.Stream, mean, variance, x device.Tensor) error {
	z := operands.Moments(mean, variance, x)
	wide := batchNormArgs{x: k.addr(x), mean: k.addr(mean), variance: k.addr(variance), n: uint64(z.N), c: uint64(z.C), l: uint64(z.L)}
	if done, err := k.wideSums(s, x.DType, wide); done {
		return err
	}
	a := newNormArgs(z, kernels.Norm{})
	a.x, a.mean, a.factor = k.addr(x), k.addr(mean), 1/float64(z.N*z.L)
	for mode, dst := range []device.Tensor{sumX: mean, sumSquares: variance} {
		a.mode, a.dst = uint64(mode), k.addr(dst)
		if err := k.normSums(s, x.DType, a); err != nil {
			return err
		}
	}
	return nil
}

// normSums computes sums for each channel, chunk by chunk. The mode in a says which sums.
func (k *kernelSet) normSums(st device.Stream, dt device.DType, a normArgs) error {
	if a.c == 0 {
		return nil
	}
	work, err := k.d.stream(st).workspace()
	if err != nil {
		return err
	}
	a.part = uint64(work.Addr())
	c, terms := int(a.c), int(a.n*a.l)
	if c > maxSumChannels { // then there is one chunk
		part := device.Tensor{DType: device.Uint8, Shape: device.Shape{sumBytes * c}}
		scratch, err := k.scratch(&part)
		if err != nil {
			return err
		}
		defer k.freeScratch(k.d.stream(st), scratch)
		a.part = k.addr(part)
	}
	f, g, worth := &k.normPlanes, grid{c, 1, 1, threads, 1}, runTerms
	if a.l == 1 {
		f, g, worth = &k.normColumns, grid{ceil(c, warp), 1, 1, warp, threads / warp}, columnTerms
	}
	chunks := max(min(ceil(terms, worth), sumBlocks/g.x, maxSumChannels/c), 1)
	chunk := max(ceil(terms, chunks), 1)
	a.chunk, a.chunks = uint64(chunk), uint64(ceil(terms, chunk))
	if g.y = int(a.chunks); g.y > 0 {
		if err := k.norm(st, f, dt, g, a); err != nil {
			return err
		}
	}
	return k.norm(st, &k.normFold, dt, k.flat(2*c), a)
}

func (k *kernelSet) MergeMoments(s device.Stream, mean, variance, count, parts device.Tensor) error {
	ranks, c := operand.MergeMoments(mean, variance, count, parts)
	a := mergeArgs{mean: k.addr(mean), variance: k.addr(variance), count: k.addr(count), parts: k.addr(parts), ranks: uint64(ranks), c: uint64(c)}
	return k.launch(k.d.stream(s), k.mergeMoments[mean.DType], k.flat(max(c, 1)), unsafe.Pointer(&a), unsafe.Sizeof(a))
}

func (k *kernelSet) TrackMoments(s device.Stream, runningMean, runningVariance, batches, mean, variance, count device.Tensor, momentum float64) error {
	c := operand.TrackMoments(runningMean, runningVariance, batches, mean, variance, count)
	a := trackArgs{
		to:   mergeArgs{mean: k.addr(runningMean), variance: k.addr(runningVariance), count: k.addr(count), batches: k.addr(batches), c: uint64(c), momentum: momentum},
		mean: k.addr(mean), variance: k.addr(variance),
	}
	return k.launch(k.d.stream(s), k.trackMoments[mean.DType], k.flat(max(c, 1)), unsafe.Pointer(&a), unsafe.Sizeof(a))
}
