//go:build cgo && linux

package cuda

import (
	"unsafe"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
	"github.com/goddp/goddp/internal/kernels"
)

// batchNormArgs has the layout of the structure BatchNorm in kernels/batchnorm.cu.
type batchNormArgs struct {
	dst, residual, x, g, mean, variance, weight, bias, sums, count, mask, part uint64
	n, c, l                                                                    uint64
	chunk, chunks                                                              uint64
	relu, grads                                                                uint64
	eps                                                                        float64
	acc, accResidual                                                           device.Accum
}

const (
	wideChannels = 8  // channels per thread of a wide kernel, also of pooling
	wideRows     = 16 // minimum number of rows per thread of a wide kernel
	wideBlocks   = 6  // blocks of a wide kernel per multiprocessor
)

func (k *kernelSet) newBatchNormArgs(z operand.NormSizes, p kernels.BatchNorm) batchNormArgs {
	return batchNormArgs{
		x: k.addr(p.X), mean: k.addr(p.Mean), variance: k.addr(p.Variance), weight: k.addr(p.Weight), bias: k.addr(p.Bias), mask: k.addr(p.Mask),
		n: uint64(z.N), c: uint64(z.C), l: uint64(z.L), relu: uint64(flag(p.ReLU)), eps: p.Eps,
	}
}

// wide returns the grid of a wide kernel, and completes the arguments. It reports false if the operands do not
// suit the kernel.
func (k *kernelSet) wide(a *batchNormArgs) (g grid, suits bool) {
	rows, packs := int(a.n), int(a.c)/wideChannels
	if a.l != 1 || a.c%wideChannels != 0 || rows*packs == 0 || a.c > maxSumChannels || !packed(a.dst, a.residual, a.x, a.g) {
		return g, false
	}
	g.threadsX = 1
	for g.threadsX < min(packs, warp) {
		g.threadsX *= 2
	}
	g.threadsY = threads / g.threadsX
	g.x, g.z = ceil(packs, g.threadsX), 1
	chunks := max(min(ceil(rows, g.threadsY*wideRows), ceil(k.d.props.sms*wideBlocks, g.x), maxSumChannels/int(a.c)), 1)
	chunk := ceil(rows, chunks)
	g.y = ceil(rows, chunk)
	a.chunk, a.chunks = uint64(chunk), uint64(g.y)
	return g, true
}

func (k *kernelSet) batch(st device.Stream, f *perFloat, dt device.DType, g grid, a batchNormArgs) error {
	return k.launch(k.d.stream(st), f[dt], g, unsafe.Pointer(&a), unsafe.Sizeof(a))
}

// byte8 returns the grid of a kernel with a thread for each byte of the mask of n elements.
func (k *kernelSet) byte8(n int) grid { return k.flat(kernels.MaskBytes(n)) }

// wideSums computes the sums that a requests with the wide kernel. It reports false if the kernel does not
// support the operands.
func (k *kernelSet) wideSums(st device.Stream, dt device.DType, a batchNormArgs) (done bool, err error) {
	at := a
	at.dst = 0
	g, suits := k.wide(&at)
	if !suits {
		return false, nil
	}
	work, err := k.d.stream(st).workspace()
	if err != nil {
		return true, err
	}
	at.part, at.dst = uint64(work.Addr()), a.dst
	f := &k.batchMomentsWide
	if a.grads != 0 {
		f = &k.batchSumsWide
	}
	if err := k.batch(st, f, dt, g, at); err != nil {
		return true, err
	}
	return true, k.batch(st, &k.batchFold, dt, grid{ceil(int(a.c), warp), 1, 1, warp, warp}, at)
}

func (k *kernelSet) BatchNorm(s device.Stream, dst, residual device.Tensor, p kernels.BatchNorm) error {
	z := operands.BatchNorm("BatchNorm", p, dst, residual)
	if dst.Len() == 0 {
		return nil
	}
	a := k.newBatchNormArgs(z, p)
	a.dst, a.residual = k.addr(dst), k.addr(residual)
	if g, suits := k.wide(&a); suits {
		return k.batch(s, &k.batchNormWide, p.X.DType, g, a)
	}
	return k.batch(s, &k.batchNorm, p.X.DType, k.byte8(dst.Len()), a)
}

func (k *kernelSet) BatchNormGradSums(s device.Stream, sums, g device.Tensor, p kernels.BatchNorm) error {
	z := operands.BatchNormGradSums(sums, g, p)
	a := k.newBatchNormArgs(z, p)
	a.dst, a.g, a.grads = k.addr(sums), k.addr(g), 1
	if done, err := k.wideSums(s, p.X.DType, a); done {
		return err
	}
	b := newNormArgs(z, kernels.Norm{Eps: p.Eps})
	b.dst, b.g, b.x, b.mean, b.variance, b.mode = a.dst, a.g, a.x, a.mean, a.variance, sumGrads
	if p.ReLU {
		b.mask = a.mask
	}
	return k.normSums(s, p.X.DType, b)
}

func (k *kernelSet) BatchNormGrad(s device.Stream, to kernels.BatchNormGrads, g, sums, count device.Tensor, p kernels.BatchNorm) error {
	z := operands.BatchNormGrad(to, g, sums, count, p)
	if g.Len() == 0 {
		return nil
	}
	a := k.newBatchNormArgs(z, p)
	a.dst, a.residual, a.g, a.sums, a.count = k.addr(to.X), k.addr(to.Residual), k.addr(g), k.addr(sums), k.addr(count)
	a.acc, a.accResidual = to.AccX, to.AccResidual
	if grid, suits := k.wide(&a); suits {
		return k.batch(s, &k.batchNormGradWide, g.DType, grid, a)
	}
	return k.batch(s, &k.batchNormGrad, g.DType, k.byte8(g.Len()), a)
}
