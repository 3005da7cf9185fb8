//go:build cgo && linux

package cuda

import (
	"errors"
	"strings"
	"testing"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
	"github.com/goddp/goddp/internal/testkit/devicetest"
	"github.com/goddp/goddp/internal/testkit/fakegpu"
)

// fusing is a device whose LinearGrad always uses cuBLAS's fused kernel if there is one, even if it
// is slower.
type fusing struct {
	*gpuDevice
	fused, all int
}

func (f *fusing) Kernels() device.Kernels { return fusingKernels{f.kernels, f} }

type fusingKernels struct {
	*kernelSet
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
	return k.kernelSet.LinearGrad(s, dw, accW, db, accB, g, x)
}

// The conformance suite checks cuBLAS's fused bias gradient, which the race may never choose: it
// sums the right operand along the right axis, without the product's factor.
func TestFusedBiasGradient(t *testing.T) {
	checkFusedBiasGradient(t, devicetest.Cases(device.Float16, device.BFloat16), false)
}

func TestEmulatedFusedBiasGradient(t *testing.T) {
	fakegpu.Use(t)
	checkFusedBiasGradient(t, devicetest.Cases(), true)
}

func checkFusedBiasGradient(t *testing.T, cases []devicetest.Case, quick bool) {
	d := gpu(t, nil)
	fused := 0
	for _, c := range cases {
		if strings.HasPrefix(c.Name, "LinearGrad") {
			f, check := &fusing{gpuDevice: d}, c.Check
			if quick {
				check = c.CheckQuickly
			}
			if err := check(t.Context(), f); err != nil {
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

// multiplying opens a device on the fake libcuda and libcublasLt. The fake libcublasLt computes
// products; all other kernels do nothing.
func multiplying(t *testing.T, tune bool) *gpuDevice {
	t.Helper()
	d := bare(t)
	b, err := openBlasLt(d)
	ok(t, err)
	d.kernels = &kernelSet{d: d, blas: b, fused: map[product]bool{}, prepared: map[any]bool{}}
	if tune {
		d.kernels.races = &choices{made: map[string]string{}}
	}
	return d
}

// After PrepareLinearGrad the gradients of a Linear load no kernel and allocate no memory.
func TestPreparedGradients(t *testing.T) {
	for _, tune := range []bool{false, true} {
		checkPreparedGradients(t, gpu(t, &Options{TuneMatMul: tune}))
	}
}

func TestEmulatedPreparedGradients(t *testing.T) {
	for _, tune := range []bool{false, true} {
		checkPreparedGradients(t, multiplying(t, tune))
	}
}

func checkPreparedGradients(t *testing.T, d *gpuDevice) {
	k, s := kernels.Of(d), d.Compute()
	const m, n, inner = 64, 96, 128
	for _, withBias := range []bool{false, true} {
		x, w, y := tensor(t, d, device.Float32, m, inner), tensor(t, d, device.Float32, n, inner), tensor(t, d, device.Float32, m, n)
		var bias device.Tensor
		if withBias {
			bias = tensor(t, d, device.Float32, n)
		}
		held := d.Memory().InUse
		ok(t, k.PrepareLinearGrad(s, y, x, w, bias))
		if now := d.Memory().InUse; now != held {
			t.Errorf("preparing left %d bytes in use", now-held)
		}
		plans, races := len(d.kernels.blas.plans), len(d.kernels.fused)
		if plans < 2 {
			t.Errorf("bias %v: preparing found %d products", withBias, plans)
		}
		products := func() (n int32) { // products: the number of products that the fake library has computed
			if p, err := d.kernels.blas.lib.Lookup("fakegpu_products"); err == nil {
				n = *(*int32)(p)
			}
			return n
		}
		before := products()
		ok(t, k.PrepareLinearGrad(s, y, x, w, bias))
		if n := products() - before; n != 0 {
			t.Errorf("bias %v: preparing again ran %d products", withBias, n)
		}
		ok(t, k.MatMul(s, x, device.Accum{Alpha: 1, Beta: 1}, y, false, w, false))
		if withBias {
			ok(t, k.LinearGrad(s, w, device.Accum{Alpha: 0.5}, bias, device.Accum{Alpha: 0.5}, y, x))
		}
		ok(t, k.MatMul(s, w, device.Store, y, true, x, false))
		if p, r := len(d.kernels.blas.plans), len(d.kernels.fused); p != plans || r != races {
			t.Errorf("bias %v: %d products were found and %d races run after preparing", withBias, p-plans, r-races)
		}
	}
	if races := len(d.kernels.fused); races != int(flag(d.kernels.races != nil)) {
		t.Errorf("%d races were run, tuning: %v", races, d.kernels.races != nil)
	}
}
