//go:build cgo && linux

package cuda

import (
	"fmt"
	"math"
	"testing"
	"unsafe"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// measure runs f b.N times on the compute stream. It divides amount, what one run of f moves (GB/s)
// or computes (TFLOP/s), by the time that the device takes.
func measure(b *testing.B, d *gpuDevice, amount float64, unit string, f func() error) {
	for range 3 { // loads, tunes, warms up
		ok(b, f())
	}
	ok(b, d.Compute().Sync(b.Context()))
	from, err := d.events.record(d.compute.handle)
	ok(b, err)
	b.ResetTimer()
	for range b.N {
		ok(b, f())
	}
	to, err := d.events.record(d.compute.handle)
	ok(b, err)
	ok(b, d.compute.Sync(b.Context()))
	took, err := d.elapsed(from, to)
	ok(b, err)
	d.events.put(from, to)
	b.ReportMetric(amount*float64(b.N)/took.Seconds(), unit)
}

func uniform(b *testing.B, d *gpuDevice, x device.Tensor) device.Tensor {
	ok(b, kernels.Of(d).Uniform(d.Compute(), x, -1, 1, 1, 0))
	return x
}

// BenchmarkMatMul multiplies matrices of a linear layer with 4000 features at batch size 1000, in
// the forward pass and for the weight's gradient, and two large square matrices.
func BenchmarkMatMul(b *testing.B) {
	for _, c := range []struct {
		name string
		dt   device.DType
		opts Options
	}{
		{"float32", device.Float32, Options{}}, {"tf32", device.Float32, Options{AllowTF32: true}},
		{"bfloat16", device.BFloat16, Options{}}, {"float16", device.Float16, Options{}}, {"float64", device.Float64, Options{}},
	} {
		c.opts.Log = quiet()
		d := gpu(b, &c.opts)
		k, s := kernels.Of(d), d.Compute()
		x, w, y := uniform(b, d, tensor(b, d, c.dt, 1000, 4000)), uniform(b, d, tensor(b, d, c.dt, 4000, 4000)), tensor(b, d, c.dt, 1000, 4000)
		bias := uniform(b, d, tensor(b, d, c.dt, 4000))
		const flops = 2 * 1000 * 4000 * 4000 / 1e12
		b.Run(c.name+"/forward", func(b *testing.B) {
			measure(b, d, flops, "TFLOP/s", func() error { return k.MatMul(s, y, device.Store, x, false, w, true) })
		})
		b.Run(c.name+"/linear+relu", func(b *testing.B) {
			measure(b, d, flops, "TFLOP/s", func() error { return k.Linear(s, y, x, w, bias, kernels.ActReLU) })
		})
		b.Run(c.name+"/weight", func(b *testing.B) {
			measure(b, d, flops, "TFLOP/s", func() error { return k.MatMul(s, w, device.Accum{Alpha: 1e-9, Beta: 1}, y, true, x, false) })
		})
		b.Run(c.name+"/weight+bias", func(b *testing.B) {
			measure(b, d, flops, "TFLOP/s", func() error { return k.LinearGrad(s, w, device.Accum{Alpha: 1e-9, Beta: 1}, bias, device.Store, y, x) })
		})
		if c.dt == device.Float64 {
			continue
		}
		const n = 8192
		p, q, r := uniform(b, d, tensor(b, d, c.dt, n, n)), uniform(b, d, tensor(b, d, c.dt, n, n)), tensor(b, d, c.dt, n, n)
		b.Run(c.name+"/8192", func(b *testing.B) {
			measure(b, d, 2*n*n*n/1e12, "TFLOP/s", func() error { return k.MatMul(s, r, device.Store, p, false, q, false) })
		})
	}
}

// BenchmarkBandwidth counts the bytes that a kernel must read and write. The arrays are several
// times as large as the GPU's cache.
func BenchmarkBandwidth(b *testing.B) {
	d := gpu(b, &Options{Log: quiet()})
	k, s := kernels.Of(d), d.Compute()
	for _, dt := range []device.DType{device.Float32, device.BFloat16} {
		const rows, cols = 16000, 4000
		x, y, z := uniform(b, d, tensor(b, d, dt, rows, cols)), uniform(b, d, tensor(b, d, dt, rows, cols)), tensor(b, d, dt, rows, cols)
		row, column, g := uniform(b, d, tensor(b, d, dt, cols)), uniform(b, d, tensor(b, d, dt, rows, 1)), uniform(b, d, tensor(b, d, dt, 1))
		other := tensor(b, d, device.Float64, rows*cols)
		labels := tensor(b, d, device.Int64, rows)
		sums := device.Float32
		if dt == device.Float64 {
			sums = device.Float64
		}
		loss, rowSums := tensor(b, d, sums), uniform(b, d, tensor(b, d, device.Float64, 2, rows))
		raised, hash := tensor(b, d, device.Uint8), tensor(b, d, device.Int64)
		variance := tensor(b, d, dt, rows, cols)
		ok(b, k.Fill(s, labels, 7))
		ok(b, k.Fill(s, variance, 0))
		pass := float64(x.Bytes()) / 1e9
		for _, c := range []struct {
			name   string
			passes float64
			f      func() error
		}{
			{"Fill", 1, func() error { return k.Fill(s, z, 3) }},
			{"Copy", 2, func() error { return k.Copy(s, z, x) }},
			{"Copy to float64", 1 + 8/float64(dt.Size()), func() error { return k.Copy(s, other, x) }},
			{"Axpby", 3, func() error { return k.Axpby(s, z, device.Accum{Alpha: 0.5, Beta: 0.5}, x) }},
			{"Unary ReLU", 2, func() error { return k.Unary(s, kernels.ReLU, z, x) }},
			{"Unary GELU", 2, func() error { return k.Unary(s, kernels.GELU, z, x) }},
			{"UnaryGrad GELU", 3, func() error { return k.UnaryGrad(s, kernels.GELU, z, device.Store, x, y, y) }},
			{"Unary Tanh", 2, func() error { return k.Unary(s, kernels.Tanh, z, x) }},
			{"UnaryGrad ReLU", 3, func() error { return k.UnaryGrad(s, kernels.ReLU, z, device.Store, x, y, y) }},
			{"Binary", 3, func() error { return k.Binary(s, kernels.Add, z, x, y) }},
			{"Binary row", 2, func() error { return k.Binary(s, kernels.Add, z, x, row) }},
			{"Binary column", 2, func() error { return k.Binary(s, kernels.Mul, z, x, column) }},
			{"Sum rows", 1, func() error { return k.Sum(s, row, device.Store, x) }},
			{"Sum columns", 1, func() error { return k.Sum(s, column, device.Store, x) }},
			{"Sum all", 1, func() error { return k.Sum(s, g, device.Store, x) }},
			{"MSE", 2, func() error { return k.MSE(s, g, x, y) }},
			{"MSEGrad", 3, func() error { return k.MSEGrad(s, z, device.Store, g, x, y) }},
			{"CrossEntropy", 1, func() error { return k.CrossEntropy(s, loss, rowSums, x, labels) }},
			{"CrossEntropyGrad", 2, func() error { return k.CrossEntropyGrad(s, z, device.Store, loss, rowSums, x, labels) }},
			{"SGD", 3, func() error { return k.SGD(s, kernels.SGDStep{Param: z, Grad: x, LR: 1e-9}) }},
			{"SGD momentum", 5, func() error {
				return k.SGD(s, kernels.SGDStep{Param: z, Grad: x, Velocity: y, LR: 1e-9, Momentum: 0.9})
			}},
			{"AdamW", 7, func() error {
				return k.AdamW(s, kernels.AdamWStep{Param: z, Grad: x, Mean: y, Variance: variance, LR: 1e-9, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, Step: 10})
			}},
			{"Uniform", 1, func() error { return k.Uniform(s, z, -1, 1, 1, 0) }},
			{"NonFinite", 1, func() error { return k.NonFinite(s, raised, x) }},
			{"Hash", 1, func() error { return k.Hash(s, hash, x) }},
		} {
			b.Run(fmt.Sprintf("%v/%s", dt, c.name), func(b *testing.B) { measure(b, d, c.passes*pass, "GB/s", c.f) })
		}
		for _, t := range []device.Tensor{x, y, z, other} {
			d.Free(t.Buf)
		}
	}
}

// gpt2Sizes are the numbers of elements of GPT-2's 124M parameters.
func gpt2Sizes() []int {
	const c = 768
	sizes := []int{50304 * c, 1024 * c}
	for range 12 {
		sizes = append(sizes, c, c, 3*c*c, 3*c, c*c, c, c, c, 4*c*c, 4*c, 4*c*c, c)
	}
	return append(sizes, c, c)
}

// BenchmarkGPT2Ends measures the parts of a step of GPT-2 124M other than products and attention, with 64
// sequences of 1024 tokens in bfloat16: the cross-entropy, the clipping of the gradient norm, and AdamW
// with float32 masters, in batches of gradients of the given MiB.
func BenchmarkGPT2Ends(b *testing.B) {
	d := gpu(b, &Options{Log: quiet()})
	k, s := kernels.Of(d), d.Compute()
	var grads []device.Tensor
	var steps []kernels.AdamWStep
	n := 0
	for _, size := range gpt2Sizes() {
		g := uniform(b, d, tensor(b, d, device.BFloat16, size))
		wide := func() device.Tensor {
			x := tensor(b, d, device.Float32, size)
			ok(b, k.Fill(s, x, 1))
			return x
		}
		steps = append(steps, kernels.AdamWStep{
			Param: tensor(b, d, device.BFloat16, size), Grad: g, Master: wide(), Mean: wide(), Variance: wide(),
			LR: 1e-9, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Step: 10,
		})
		grads, n = append(grads, g), n+size
	}
	gb := float64(n) / 1e9
	sum, norm := tensor(b, d, device.Float64), tensor(b, d, device.Float32)
	b.Run("PowerSum", func(b *testing.B) {
		measure(b, d, 2*gb, "GB/s", func() error { return k.PowerSum(s, sum, 2, grads...) })
	})
	b.Run("ScaleToNorm by 1", func(b *testing.B) {
		measure(b, d, 2*gb, "GB/s", func() error { return k.ScaleToNorm(s, norm, sum, 2, 1e9, grads...) })
	})
	b.Run("ScaleToNorm", func(b *testing.B) {
		ok(b, k.Fill(s, sum, 1.01))
		measure(b, d, 4*gb, "GB/s", func() error { return k.ScaleToNorm(s, norm, sum, 2, 1, grads...) })
	})
	for _, mib := range []int{4, 16, 1 << 20} {
		b.Run(fmt.Sprintf("AdamW/%d", mib), func(b *testing.B) {
			measure(b, d, 28*gb, "GB/s", func() error {
				first, size := 0, 0
				for i, g := range grads {
					if size += g.Bytes(); size > mib<<20 || i == len(grads)-1 {
						if err := k.AdamW(s, steps[first:i+1]...); err != nil {
							return err
						}
						first, size = i+1, 0
					}
				}
				return nil
			})
		})
	}
	logits, labels := uniform(b, d, tensor(b, d, device.BFloat16, 65536, 50304)), tensor(b, d, device.Int64, 65536)
	ok(b, k.Fill(s, labels, 7))
	grad := tensor(b, d, device.BFloat16, 65536, 50304)
	loss, rowSums := tensor(b, d, device.Float32), tensor(b, d, device.Float64, 2, 65536)
	pass := float64(logits.Bytes()) / 1e9
	b.Run("CrossEntropy", func(b *testing.B) {
		measure(b, d, pass, "GB/s", func() error { return k.CrossEntropy(s, loss, rowSums, logits, labels) })
	})
	b.Run("CrossEntropyGrad", func(b *testing.B) {
		measure(b, d, 2*pass, "GB/s", func() error { return k.CrossEntropyGrad(s, grad, device.Store, loss, rowSums, logits, labels) })
	})
	b.Run("CrossEntropyInPlace", func(b *testing.B) {
		measure(b, d, 2*pass, "GB/s", func() error { return k.CrossEntropyInPlace(s, rowSums, logits, labels) })
	})
}

// BenchmarkHostCopy measures CopyIn and CopyOut of 64 MiB.
func BenchmarkHostCopy(b *testing.B) {
	d := gpu(b, &Options{Log: quiet()})
	mem := make([]byte, 64<<20)
	x := tensor(b, d, device.Uint8, len(mem))
	b.Run("in", func(b *testing.B) {
		measure(b, d, float64(len(mem))/1e9, "GB/s", func() error { return d.CopyIn(d.Compute(), x.Buf, mem) })
	})
	b.Run("out", func(b *testing.B) {
		measure(b, d, float64(len(mem))/1e9, "GB/s", func() error { return d.CopyOut(b.Context(), d.Compute(), mem, x.Buf) })
	})
}

// BenchmarkLaunch measures the time that the host takes to enqueue a small kernel.
func BenchmarkLaunch(b *testing.B) {
	d := gpu(b, &Options{Log: quiet()})
	k, s := kernels.Of(d), d.Compute()
	x, y, row := uniform(b, d, tensor(b, d, device.Float32, 64, 64)), tensor(b, d, device.Float32, 64, 64), tensor(b, d, device.Float32, 64)
	for _, c := range []struct {
		name string
		f    func() error
	}{
		{"Axpby", func() error { return k.Axpby(s, y, device.Store, x) }},
		{"Binary", func() error { return k.Binary(s, kernels.Add, y, x, x) }},
		{"Sum", func() error { return k.Sum(s, row, device.Store, x) }},
		{"MatMul", func() error { return k.MatMul(s, y, device.Store, x, false, x, true) }},
		{"Linear", func() error { return k.Linear(s, y, x, x, row, kernels.ActReLU) }},
		{"Record", func() error { s.Record(); return nil }},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for i := range b.N {
				if i%200 == 0 { // wait before the driver's queue is full, because a launch into a full queue blocks
					b.StopTimer()
					ok(b, s.Sync(b.Context()))
					b.StartTimer()
				}
				ok(b, c.f())
			}
		})
	}
}

// BenchmarkAttention measures causal attention with the shapes of GPT-2 and Llama 3.2 1B, where
// queries, keys and values are parts of one tensor, by the package's own kernels and by cuDNN. It counts
// only the products on and below the diagonal. "backward" computes all gradients and counts five
// products, as other implementations' figures do. bench/torch_attention.py prints PyTorch's figures. "documents" are
// rows of documents of 128 tokens, of which it counts the products within documents.
func BenchmarkAttention(b *testing.B) {
	d := gpu(b, &Options{Log: quiet()})
	k, s := d.kernels, d.compute
	for _, c := range []struct {
		dt                                   device.DType
		batches, rows, heads, keyHeads, size int
	}{
		{device.BFloat16, 16, 1024, 12, 12, 64}, {device.BFloat16, 64, 1024, 12, 12, 64}, {device.BFloat16, 16, 1024, 6, 6, 128},
		{device.BFloat16, 8, 2048, 32, 8, 64}, {device.BFloat16, 4, 4096, 32, 8, 64}, {device.BFloat16, 4, 2048, 32, 8, 128},
		{device.Float16, 16, 1024, 12, 12, 64}, {device.Float32, 16, 1024, 12, 12, 64},
	} {
		all := c.heads + 2*c.keyHeads
		qkv, o := uniform(b, d, tensor(b, d, c.dt, c.batches, c.rows, all, c.size)), tensor(b, d, c.dt, c.batches, c.rows, c.heads, c.size)
		dqkv, g := tensor(b, d, c.dt, c.batches, c.rows, all, c.size), uniform(b, d, tensor(b, d, c.dt, c.batches, c.rows, c.heads, c.size))
		lse := tensor(b, d, device.Float32, c.batches, c.heads, c.rows)
		parts := func(t device.Tensor) (q, k, v kernels.Heads) {
			return kernels.RowsFirst(t, 0, c.heads), kernels.RowsFirst(t, c.heads, c.keyHeads), kernels.RowsFirst(t, c.heads+c.keyHeads, c.keyHeads)
		}
		a := kernels.Attend{Causal: true, Scale: 1 / math.Sqrt(float64(c.size))}
		to := kernels.AttentionGrads{AccQ: device.Store, AccK: device.Store, AccV: device.Store}
		a.Q, a.K, a.V = parts(qkv)
		to.Q, to.K, to.V = parts(dqkv)
		result, gradient := kernels.RowsFirst(o, 0, c.heads), kernels.RowsFirst(g, 0, c.heads)
		product := 2 * float64(c.batches*c.heads) * float64(c.rows*c.rows) / 2 * float64(c.size) / 1e12
		ok(b, k.ownAttention(s, result, lse, a))
		run := func(name string, products float64, f func() error) {
			b.Run(fmt.Sprintf("%v/%dx%d(%d)x%dx%d/%s", c.dt, c.batches, c.heads, c.keyHeads, c.rows, c.size, name), func(b *testing.B) {
				measure(b, d, products*product, "TFLOP/s", f)
			})
		}
		run("own forward", 2, func() error { return k.ownAttention(s, result, lse, a) })
		run("own backward", 5, func() error { return k.ownAttentionGrad(s, to, gradient, result, lse, a) })
		const document = 128
		inDocuments := a
		inDocuments.Starts = tensor(b, d, device.Int64, c.batches, c.rows)
		starts := make([]int64, c.batches*c.rows)
		for i := range starts {
			starts[i] = int64(i % c.rows / document * document)
		}
		ok(b, d.CopyIn(s, inDocuments.Starts.Buf, unsafe.Slice((*byte)(unsafe.Pointer(&starts[0])), 8*len(starts))))
		run("documents forward", 2.*document/float64(c.rows), func() error { return k.ownAttention(s, result, lse, inDocuments) })
		run("documents backward", 5.*document/float64(c.rows), func() error { return k.ownAttentionGrad(s, to, gradient, result, lse, inDocuments) })
		for _, name := range []string{"cuDNN", "cuDNN in any order"} {
			k.flash.anyOrder = name != "cuDNN"
			ok(b, k.PrepareAttention(s, result, a))
			if k.flash.way(result, a) != nil {
				run(name+" forward", 2, func() error { return k.Attention(s, result, lse, a) })
				run(name+" backward", 5, func() error { return k.AttentionGrad(s, to, gradient, result, lse, a) })
			}
			clear(k.flash.ways)
			clear(k.flash.faults)
		}
		for _, t := range []device.Tensor{qkv, o, dqkv, g, lse, inDocuments.Starts} {
			d.Free(t.Buf)
		}
	}
}

// BenchmarkNormalization runs the kernels of GPT-2 124M's LayerNorms and embeddings, for 64 sequences of
// 1024 tokens, and the same for Llama 3.2 1B's hidden size. It counts the bytes that a kernel must read and write.
func BenchmarkNormalization(b *testing.B) {
	for _, cols := range []int{768, 2048} {
		b.Run(fmt.Sprint(cols), func(b *testing.B) { benchmarkNormalization(b, cols) })
	}
}

func benchmarkNormalization(b *testing.B, cols int) {
	const batch, length, vocab = 64, 1024, 50304
	const rows = batch * length
	d := gpu(b, &Options{Log: quiet()})
	k, s := kernels.Of(d), d.Compute()
	ids := make([]int64, rows)
	for i := range ids {
		u := float64(uint32(i*2654435761)) / (1 << 32)
		ids[i] = int64(u * u * u * vocab) // few tokens are frequent, as in texts
	}
	index := tensor(b, d, device.Int64, rows)
	ok(b, d.CopyIn(s, index.Buf, device.HostTensor(ids, device.Invalid).Buf.Host()))
	mean, variance := tensor(b, d, device.Float32, rows), tensor(b, d, device.Float32, rows)
	for _, dt := range []device.DType{device.BFloat16, device.Float32} {
		random := func(shape ...int) device.Tensor { return uniform(b, d, tensor(b, d, dt, shape...)) }
		x, y, g, z, sum := random(rows, cols, 1), random(rows, cols, 1), random(rows, cols, 1), tensor(b, d, dt, rows, cols, 1), tensor(b, d, dt, rows, cols, 1)
		w, bias, dw, db := random(cols), random(cols), tensor(b, d, dt, cols), tensor(b, d, dt, cols)
		table, positions := random(1, vocab, cols), tensor(b, d, dt, length, cols)
		p := kernels.Norm{Groups: 1, Eps: 1e-5}
		grads := kernels.NormGrads{X: z, Weight: dw, Bias: db, AccX: device.Store, AccWeight: device.Store, AccBias: device.Store}
		adding, addend := grads, grads
		adding.AccX.Beta, addend.Addend = 1, y
		pass := float64(x.Bytes()) / 1e9
		for _, c := range []struct {
			name   string
			passes float64
			f      func() error
		}{
			{"norm", 2, func() error { return k.GroupNorm(s, z, mean, variance, x, w, bias, p) }},
			{"add, norm", 4, func() error { return k.AddGroupNorm(s, z, sum, mean, variance, x, y, w, bias, p) }},
			{"gradients", 3, func() error { return k.GroupNormGrad(s, grads, g, x, mean, variance, w, p) }},
			{"gradients, adding", 4, func() error { return k.GroupNormGrad(s, adding, g, x, mean, variance, w, p) }},
			{"gradients and addend", 4, func() error { return k.GroupNormGrad(s, addend, g, x, mean, variance, w, p) }},
			{"gradient of x alone", 3, func() error {
				return k.GroupNormGrad(s, kernels.NormGrads{X: z, AccX: device.Store}, g, x, mean, variance, w, p)
			}},
			{"embedding", 2, func() error { return k.Gather(s, z.Reshape(1, rows, cols), table, index) }},
			{"embedding's gradient", 1 + float64(vocab)/rows, func() error { return k.ScatterAdd(s, table, device.Store, x.Reshape(1, rows, cols), index, -1) }},
			{"positions' gradient", 1 + 1./batch, func() error { return k.Sum(s, positions, device.Store, x.Reshape(batch, length, cols)) }},
		} {
			b.Run(fmt.Sprintf("%v/%s", dt, c.name), func(b *testing.B) { measure(b, d, c.passes*pass, "GB/s", c.f) })
		}
		for _, t := range []device.Tensor{x, y, g, z, sum, table} {
			d.Free(t.Buf)
		}
	}
}
