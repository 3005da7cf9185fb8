//go:build cgo && linux

package cuda

import (
	"slices"
	"testing"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
	"github.com/goddp/goddp/internal/testkit/fakegpu"
)

// Whichever of cuBLAS's algorithms wins, the results have the bits of the first one, also those of later products with other
// factors.
func TestAlgorithmsWithTheSameBits(t *testing.T) {
	checkAlgorithms(t, func(*gpuDevice) {}, 1024, 2304, 768)
}

// Here the first algorithm is slow, another one splits the inner dimension, and the fastest one is wrong.
func TestEmulatedAlgorithmsWithTheSameBits(t *testing.T) {
	fakegpu.Use(t)
	check := func(d *gpuDevice) {
		for p, plan := range d.kernels.blas.plans {
			if plan.c.count != 3 || plan.c.way != 1 {
				t.Errorf("%+v: algorithm %d of %d, want 1 of 3", p, plan.c.way, plan.c.count)
			}
		}
	}
	checkAlgorithms(t, check, 48, 32, 24)
}

func checkAlgorithms(t *testing.T, check func(*gpuDevice), m, n, inner int) {
	for _, dt := range []device.DType{device.Float32, device.BFloat16} {
		var results [2][]byte
		for i, least := range []float64{1e30, 0} {
			d := gpu(t, &Options{Log: quiet()})
			d.kernels.blas.races.least = least
			if slow, err := d.kernels.blas.lib.Lookup("fakegpu_first_is_slow"); err == nil {
				*(*int32)(slow) = 1
				t.Cleanup(func() { *(*int32)(slow) = 0 })
			}
			k, s := kernels.Of(d), d.Compute()
			x, w := tensor(t, d, dt, m, inner), tensor(t, d, dt, n, inner)
			y, dx, dw := tensor(t, d, dt, m, n), tensor(t, d, dt, m, inner), tensor(t, d, dt, n, inner)
			ok(t, k.Fill(s, x, 0))
			ok(t, k.Normal(s, w, 0, 1, 1, 0))
			ok(t, k.Linear(s, y, x, w, device.Tensor{}, kernels.NoActivation)) // zeros do not settle
			ok(t, k.Normal(s, x, 0, 1, 2, 0))
			ok(t, k.Fill(s, dw, 1))
			for _, acc := range []device.Accum{device.Store, {Alpha: 1. / 3, Beta: 0.7}} {
				ok(t, k.Linear(s, y, x, w, device.Tensor{}, kernels.NoActivation))
				ok(t, k.MatMul(s, dx, acc, y, false, w, false))
				ok(t, k.MatMul(s, dw, device.Accum{Alpha: acc.Alpha, Beta: 1}, y, true, x, false))
			}
			for _, r := range []device.Tensor{y, dx, dw} {
				b := make([]byte, r.Bytes())
				ok(t, d.CopyOut(t.Context(), s, b, r.Buf))
				results[i] = append(results[i], b...)
			}
			if i == 1 {
				check(d)
			}
		}
		if !slices.Equal(results[0], results[1]) {
			t.Errorf("%v: the race changed a result", dt)
		}
	}
}
