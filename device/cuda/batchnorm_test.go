//go:build cgo && linux

package cuda

import (
	"errors"
	"slices"
	"testing"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
	"github.com/goddp/goddp/internal/testkit/fakegpu"
)

// The wide kernels, which need aligned operands, give the same results as the others.
func TestWideBatchNorm(t *testing.T) {
	d := gpu(t, nil)
	k, s := d.kernels, d.compute
	const rows, channels = 5000, 72
	n := rows * channels
	run := func(skew int) (all [][]float32) {
		at := func(fill uint64) device.Tensor {
			x := tensor(t, d, device.BFloat16, n+skew).Range(skew, n+skew).Reshape(rows, channels, 1)
			ok(t, k.Uniform(s, x, -1, 3, fill, 0))
			return x
		}
		x, g, r, y, dx, dr := at(1), at(2), at(3), at(4), at(5), at(6)
		stats := func(shape ...int) device.Tensor { return tensor(t, d, device.Float32, shape...) }
		mean, variance, sums, count := stats(channels), stats(channels), stats(2, channels), stats()
		p := kernels.BatchNorm{X: x, Mean: mean, Variance: variance, Eps: 1e-5, ReLU: true, Mask: tensor(t, d, device.Uint8, kernels.MaskBytes(n))}
		ok(t, errors.Join(
			k.Fill(s, count, rows), k.Moments(s, mean, variance, x), k.BatchNorm(s, y, r, p), k.BatchNormGradSums(s, sums, g, p),
			k.BatchNormGrad(s, kernels.BatchNormGrads{X: dx, AccX: device.Store, Residual: dr, AccResidual: device.Store}, g, sums, count, p)))
		for _, v := range []device.Tensor{mean, variance, sums, y, dx, dr} {
			wide := tensor(t, d, device.Float32, v.Shape...)
			ok(t, k.Copy(s, wide, v))
			all = append(all, download(t, d, wide))
		}
		return all
	}
	want, got := run(1), run(0)
	for i := range want {
		var size, off float64
		for j, w := range want[i] {
			size += float64(w) * float64(w)
			off += float64(got[i][j]-w) * float64(got[i][j]-w)
		}
		if !(off <= 1e-6*size) { // a mask's bit may differ where the result is almost 0
			t.Errorf("array %d: the square of the difference is %.2g of that of the numbers", i, off/size)
		}
	}
}

func TestEmulatedWideBatchNorm(t *testing.T) {
	fakegpu.Use(t)
	TestWideBatchNorm(t)
}

// The sums of more channels than fit in a stream's workspace are not written behind it.
func TestEmulatedSumsOfManyChannels(t *testing.T) {
	fakegpu.Use(t)
	d := gpu(t, nil)
	k, s := d.kernels, d.compute
	const guard = 7
	memory := tensor(t, d, device.Uint8, 2*workspaceSize)
	behind := memory.Range(workspaceSize, 2*workspaceSize)
	usual, err := s.workspace()
	ok(t, err)
	s.work = memory.Range(0, workspaceSize).Buf
	defer func() { s.work = usual }()
	const channels = maxSumChannels + wideChannels
	ok(t, k.Fill(s, behind, guard))
	x, mean, variance := tensor(t, d, device.Float64, channels), tensor(t, d, device.Float64, channels), tensor(t, d, device.Float64, channels)
	ok(t, errors.Join(k.Fill(s, x, 3), k.Moments(s, mean, variance, x.Reshape(1, channels, 1))))
	bytes := make([]byte, workspaceSize)
	ok(t, d.CopyOut(t.Context(), s, bytes, behind.Buf))
	if slices.ContainsFunc(bytes, func(b byte) bool { return b != guard }) {
		t.Error("the memory behind the workspace was written")
	}
	for _, e := range []struct {
		moment device.Tensor
		want   float32
	}{{mean, 3}, {variance, 0}} {
		narrow := tensor(t, d, device.Float32, channels)
		ok(t, k.Copy(s, narrow, e.moment))
		if got := download(t, d, narrow); slices.Min(got) != e.want || slices.Max(got) != e.want {
			t.Errorf("a moment is between %v and %v, want %v", slices.Min(got), slices.Max(got), e.want)
		}
	}
}
