package cpu

import (
	"fmt"
	"testing"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// BenchmarkMatMul reports GFLOP/s. A product [n n]·[n n] counts as 2n³ operations.
func BenchmarkMatMul(b *testing.B) {
	for _, lib := range []BLAS{OpenBLAS, Gonum} {
		for _, threads := range []int{1, 2} {
			for _, n := range []int{64, 256, 512, 1024} {
				b.Run(fmt.Sprintf("%s/threads=%d/n=%d", lib, threads, n), func(b *testing.B) {
					if lib == OpenBLAS {
						needOpenBLAS(b)
					}
					d := New(&Options{BLAS: lib, Threads: threads})
					x, y, dst := host(random(n*n), n, n), host(random(n*n), n, n), host(make([]float32, n*n), n, n)
					for b.Loop() {
						if err := kernels.Of(d).MatMul(d.Compute(), dst, device.Store, x, false, y, true); err != nil {
							b.Fatal(err)
						}
					}
					b.ReportMetric(2*float64(n*n*n)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
				})
			}
		}
	}
}

// BenchmarkKernels reports the bytes that kernels move per second.
func BenchmarkKernels(b *testing.B) {
	const m, n = 1024, 1024
	x, y, dst := host(random(m*n), m, n), host(random(m*n), m, n), host(make([]float32, m*n), m, n)
	row, one := host(make([]float32, n)), host([]float32{1})
	mean, variance := host(make([]float32, m*n), m, n), host(make([]float32, m*n), m, n)
	flag, hash := device.HostTensor(make([]uint8, 1), device.Uint8), device.HostTensor(make([]int64, 1), device.Int64)
	bits := device.HostTensor(make([]uint16, m*n), device.BFloat16, m, n)
	blocks := device.HostTensor(make([]uint8, kernels.QuantizedLen(m*n)), device.Uint8)
	for _, threads := range []int{1, 2} {
		d := New(&Options{Threads: threads})
		k, s := kernels.Of(d), d.Compute()
		for _, c := range []struct {
			name   string
			passes int64 // how often the kernel reads or writes a whole matrix
			run    func() error
		}{
			{"Axpby", 3, func() error { return k.Axpby(s, dst, device.Accum{Alpha: 0.5, Beta: 0.5}, x) }},
			{"Add", 3, func() error { return k.Binary(s, kernels.Add, dst, x, y) }},
			{"AddRow", 2, func() error { return k.Binary(s, kernels.Add, dst, x, row) }},
			{"ReLU", 2, func() error { return k.Unary(s, kernels.ReLU, dst, x) }},
			{"ReLUGrad", 3, func() error { return k.UnaryGrad(s, kernels.ReLU, dst, device.Store, x, x, y) }},
			{"Tanh", 2, func() error { return k.Unary(s, kernels.Tanh, dst, x) }},
			{"SumRows", 1, func() error { return k.Sum(s, row, device.Store, x) }},
			{"SumAll", 1, func() error { return k.Sum(s, one, device.Store, x) }},
			{"MSE", 2, func() error { return k.MSE(s, one, x, y) }},
			{"MSEGrad", 3, func() error { return k.MSEGrad(s, dst, device.Store, one, x, y) }},
			{"SGD", 3, func() error { return k.SGD(s, kernels.SGDStep{Param: dst, Grad: x, LR: 1e-9}) }},
			{"AdamW", 7, func() error {
				return k.AdamW(s, kernels.AdamWStep{Param: dst, Grad: x, Mean: mean, Variance: variance, LR: 1e-9, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, Step: 10})
			}},
			{"Normal", 1, func() error { return k.Normal(s, dst, 0, 1, 1, 0) }},
			{"NonFinite", 1, func() error { return k.NonFinite(s, flag, x) }},
			{"Hash", 1, func() error { return k.Hash(s, hash, x) }},
			{"ToBFloat16", 1, func() error { return k.Copy(s, bits, x) }},
			{"FromBFloat16", 1, func() error { return k.Copy(s, dst, bits) }},
			{"Quantize", 1, func() error { return k.Quantize(s, blocks, x) }},
			{"Dequantize", 1, func() error { return k.Dequantize(s, dst, device.Store, blocks) }},
		} {
			b.Run(fmt.Sprintf("%s/threads=%d", c.name, threads), func(b *testing.B) {
				b.SetBytes(c.passes * m * n * 4)
				for b.Loop() {
					if err := c.run(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
