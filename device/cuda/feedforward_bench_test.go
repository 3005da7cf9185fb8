//go:build cgo && linux

package cuda

import (
	"testing"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// BenchmarkFeedForward measures the parts of a FeedForward of GPT-2 124M with 64 sequences of 1024
// tokens: products in TFLOP/s, other kernels in GB/s of necessary memory traffic.
func BenchmarkFeedForward(b *testing.B) {
	const m, c, h = 65536, 768, 3072
	const flops, bytes = 2 * m * c * h / 1e12, 2 * m * h / 1e9
	d := gpu(b, &Options{Log: quiet()})
	k, s := kernels.Of(d), d.Compute()
	of := func(shape ...int) device.Tensor { return uniform(b, d, tensor(b, d, device.BFloat16, shape...)) }
	x, w1, b1, w2, b2, y := of(m, c), of(h, c), of(h), of(c, h), of(c), of(m, c)
	pre, hidden, dpre, dw1 := of(m, h), of(m, h), of(m, h), of(h, c)
	for _, run := range []struct {
		name   string
		amount float64
		unit   string
		f      func() error
	}{
		{"forward/Linear, GELUTanh", flops, "TFLOP/s", func() error { return k.LinearUnary(s, kernels.GELUTanh, hidden, pre, x, w1, b1) }},
		{"forward/Linear", flops, "TFLOP/s", func() error { return k.Linear(s, pre, x, w1, b1, kernels.NoActivation) }},
		{"forward/GELUTanh", 2 * bytes, "GB/s", func() error { return k.Unary(s, kernels.GELUTanh, hidden, pre) }},
		{"forward/GELU", 2 * bytes, "GB/s", func() error { return k.Unary(s, kernels.GELU, hidden, pre) }},
		{"forward/second Linear", flops, "TFLOP/s", func() error { return k.Linear(s, y, hidden, w2, b2, kernels.NoActivation) }},
		{"backward/GELUTanh in the product, sum", flops, "TFLOP/s", func() error {
			return k.LinearUnaryGrad(s, kernels.GELUTanh, dpre, b1, y, w2, pre)
		}},
		{"backward/product", flops, "TFLOP/s", func() error { return k.MatMul(s, dpre, device.Store, y, false, w2, false) }},
		{"backward/GELUTanh", 3 * bytes, "GB/s", func() error {
			return k.UnaryGrad(s, kernels.GELUTanh, dpre, device.Store, dpre, pre, device.Tensor{})
		}},
		{"backward/sum", bytes, "GB/s", func() error { return k.Sum(s, b1, device.Store, dpre) }},
		{"backward/dw1", flops, "TFLOP/s", func() error { return k.MatMul(s, dw1, device.Store, dpre, true, x, false) }},
	} {
		b.Run(run.name, func(b *testing.B) { measure(b, d, run.amount, run.unit, run.f) })
	}
}
