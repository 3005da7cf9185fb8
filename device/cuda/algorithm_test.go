//go:build cgo && linux

package cuda

import (
	"slices"
	"testing"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
	"github.com/goddp/goddp/internal/testkit/fakegpu"
)

// Of cuBLAS's algorithms, the one that wins the race has the bits of the first, and the memory of the result holds nothing
// of the race.
func TestAlgorithmsWithTheSameBits(t *testing.T) {
	checkAlgorithms(t, 1024, 2304, 768)
}

func TestEmulatedAlgorithmsWithTheSameBits(t *testing.T) {
	fakegpu.Use(t)
	checkAlgorithms(t, 24, 16, 8)
}

func checkAlgorithms(t *testing.T, m, n, inner int) {
	for _, dt := range []device.DType{device.Float32, device.BFloat16} {
		var results [2][]byte
		for i, least := range []float64{1e30, 0} {
			d := gpu(t, &Options{Log: quiet()})
			d.kernels.blas.leastRaced = least
			k, s := kernels.Of(d), d.Compute()
			x, w := tensor(t, d, dt, m, inner), tensor(t, d, dt, n, inner)
			y, dx, dw := tensor(t, d, dt, m, n), tensor(t, d, dt, m, inner), tensor(t, d, dt, n, inner)
			ok(t, k.Normal(s, x, 0, 1, 1, 0))
			ok(t, k.Normal(s, w, 0, 1, 2, 0))
			ok(t, k.Linear(s, y, x, w, device.Tensor{}, kernels.NoActivation))
			ok(t, k.MatMul(s, dx, device.Store, y, false, w, false))
			ok(t, k.Fill(s, dw, 1))
			ok(t, k.MatMul(s, dw, device.Accum{Alpha: 0.5, Beta: 1}, y, true, x, false))
			for _, r := range []device.Tensor{y, dx, dw} {
				b := make([]byte, r.Bytes())
				ok(t, d.CopyOut(t.Context(), s, b, r.Buf))
				results[i] = append(results[i], b...)
			}
			if raced := d.kernels.blas.raced; raced != 3*i {
				t.Errorf("%v: %d products raced, want %d", dt, raced, 3*i)
			}
		}
		if !slices.Equal(results[0], results[1]) {
			t.Errorf("%v: the race changed a result", dt)
		}
	}
}
