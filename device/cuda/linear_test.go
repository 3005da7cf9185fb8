//go:build cgo && linux

package cuda

import (
	"testing"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// multiplying opens a device on the fake libcuda and libcublasLt. The fake libcublasLt computes
// products; all other kernels do nothing.
func multiplying(t *testing.T) *gpuDevice {
	t.Helper()
	d := bare(t)
	b, err := openBlasLt(d)
	ok(t, err)
	d.kernels = &kernelSet{d: d, blas: b, prepared: map[any]bool{}}
	return d
}

// After PrepareLinearGrad the gradients of a Linear load no kernel and allocate no memory.
func TestPreparedGradients(t *testing.T) {
	checkPreparedGradients(t, gpu(t, nil))
}

func TestEmulatedPreparedGradients(t *testing.T) {
	checkPreparedGradients(t, multiplying(t))
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
		plans := len(d.kernels.blas.plans)
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
		if p := len(d.kernels.blas.plans); p != plans {
			t.Errorf("bias %v: %d products were found after preparing", withBias, p-plans)
		}
	}
}
