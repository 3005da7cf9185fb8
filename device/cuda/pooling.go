//go:build cgo && linux

package cuda

import (
	"unsafe"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
	"github.com/goddp/goddp/internal/kernels"
)

// poolArgs has the layout of the structure Pool in kernels/pooling.cu.
type poolArgs struct {
	to, from, index                   uint64
	n, c, h, w, oh, ow                uint64
	kernel, stride, padding, dilation [2]int64
	exclude, adaptive, last           uint64
	acc                               device.Accum
}

// pool launches f with one thread per element of the tensor `to`. If wide is not nil and supports the operands, pool
// launches wide instead, with one thread per eight elements.
func (k *kernelSet) pool(st device.Stream, f, wide *perFloat, to, from, index device.Tensor, z operand.PoolSizes, p kernels.AvgPool, acc device.Accum) error {
	if to.Len() == 0 {
		return nil
	}
	a := poolArgs{
		to: k.addr(to), from: k.addr(from), index: k.addr(index), acc: acc,
		n: uint64(z.N), c: uint64(z.C), h: uint64(z.H), w: uint64(z.W), oh: uint64(z.OH), ow: uint64(z.OW),
		exclude: uint64(flag(p.ExcludePadding)), adaptive: uint64(flag(p.Adaptive)), last: uint64(flag(p.ChannelsLast)),
	}
	for i := range 2 {
		a.kernel[i], a.stride[i], a.padding[i], a.dilation[i] = int64(p.Kernel[i]), int64(p.Stride[i]), int64(p.Padding[i]), int64(p.Dilation[i])
	}
	n := to.Len()
	if wide != nil && p.ChannelsLast && z.C%wideChannels == 0 && packed(a.to, a.from, a.index) {
		f, n = wide, n/wideChannels
	}
	return k.launch(k.d.stream(st), f[to.DType], k.flat(n), unsafe.Pointer(&a), unsafe.Sizeof(a))
}

func (k *kernelSet) MaxPool2d(s device.Stream, dst, index, x device.Tensor, w kernels.Window) error {
	z := operands.MaxPool2d("MaxPool2d", dst, index, x, w)
	return k.pool(s, &k.maxPool, &k.maxPoolWide, dst, x, index, z, kernels.AvgPool{Window: w}, device.Store)
}

func (k *kernelSet) MaxPool2dGrad(s device.Stream, dst device.Tensor, acc device.Accum, g, index device.Tensor, w kernels.Window) error {
	z := operands.MaxPool2d("MaxPool2dGrad", g, index, dst, w)
	return k.pool(s, &k.maxPoolGrad, &k.maxPoolGradWide, dst, g, index, z, kernels.AvgPool{Window: w}, acc)
}

func (k *kernelSet) AvgPool2d(s device.Stream, dst, x device.Tensor, p kernels.AvgPool) error {
	z := operands.AvgPool2d("AvgPool2d", dst, x, p)
	return k.pool(s, &k.avgPool, nil, dst, x, device.Tensor{}, z, p, device.Store)
}

func (k *kernelSet) AvgPool2dGrad(s device.Stream, dst device.Tensor, acc device.Accum, g device.Tensor, p kernels.AvgPool) error {
	z := operands.AvgPool2d("AvgPool2dGrad", g, dst, p)
	return k.pool(s, &k.avgPoolGrad, &k.avgPoolGradWide, dst, g, device.Tensor{}, z, p, acc)
}
