//go:build cgo && linux

package cuda

import (
	"errors"
	"strings"
	"testing"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/devicetest"
)

// fusing is a device whose LinearGrad is one kernel wherever it can be, fast
// or not.
type fusing struct {
	*Device
	fused, all int
}

func (f *fusing) Kernels() device.Kernels { return fusingKernels{f.kernels, f} }

type fusingKernels struct {
	*kernels
	f *fusing
}

func (k fusingKernels) LinearGrad(s device.Stream, dw device.Tensor, accW device.Accum, db device.Tensor, accB device.Accum, g, x device.Tensor) error {
	k.f.all++
	if accB.Beta == 0 && g.Shape[0] > 1 && dw.Len() > 0 {
		err := k.gradsFused(s, linearGrad{dw, accW, db, accB, g, x})
		if err == nil {
			k.f.fused++
		}
		if !errors.Is(err, errUnsupported) {
			return err
		}
	}
	return k.kernels.LinearGrad(s, dw, accW, db, accB, g, x)
}

// TestFusedBiasGradient runs the suite on cuBLAS's own sums, which a race may
// never choose: which operand's they are, along which axis, and that the
// product's factor is not theirs.
func TestFusedBiasGradient(t *testing.T) {
	d := gpu(t, nil)
	fused := 0
	for _, c := range devicetest.Cases(device.Float16, device.BFloat16) {
		if strings.HasPrefix(c.Name, "LinearGrad") {
			f := &fusing{Device: d}
			if err := c.Check(t.Context(), f); err != nil {
				t.Error(err)
			}
			t.Logf("%s: %d of %d fused", c.Name, f.fused, f.all)
			fused += f.fused
		}
	}
	if fused == 0 {
		t.Error("cuBLAS fused nothing")
	}
}

// TestPreparedGradients checks that the gradients of a prepared Linear need
// nothing that was not there before.
func TestPreparedGradients(t *testing.T) {
	for _, tune := range []bool{false, true} {
		d := gpu(t, &Options{TuneMatMul: tune})
		k, s := d.Kernels(), d.Compute()
		const m, n, inner = 64, 96, 128
		for _, withBias := range []bool{false, true} {
			x, w, y := tensor(t, d, device.BFloat16, m, inner), tensor(t, d, device.BFloat16, n, inner), tensor(t, d, device.BFloat16, m, n)
			var bias device.Tensor
			if withBias {
				bias = tensor(t, d, device.BFloat16, n)
			}
			held := d.Memory().InUse
			ok(t, k.PrepareLinearGrad(s, y, x, w, bias))
			if now := d.Memory().InUse; now != held {
				t.Errorf("preparing left %d bytes in use", now-held)
			}
			plans, races := len(d.kernels.blas.plans), len(d.kernels.fused)
			ok(t, k.PrepareLinearGrad(s, y, x, w, bias))
			ok(t, k.MatMul(s, x, device.Accum{Alpha: 1, Beta: 1}, y, false, w, false))
			if withBias {
				ok(t, k.LinearGrad(s, w, device.Accum{Alpha: 0.5}, bias, device.Accum{Alpha: 0.5}, y, x))
			}
			ok(t, k.MatMul(s, w, device.Store, y, true, x, false))
			if p, r := len(d.kernels.blas.plans), len(d.kernels.fused); p != plans || r != races {
				t.Errorf("tuned %v, bias %v: %d products were found and %d races run after preparing", tune, withBias, p-plans, r-races)
			}
		}
	}
}
