package zero

import (
	"testing"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/must"
)

// multiplying is a device that counts matrix products.
type multiplying struct {
	device.Device
	products int
}

type multiplyingKernels struct {
	kernels.Kernels
	d *multiplying
}

func (d *multiplying) Kernels() device.Kernels { return multiplyingKernels{kernels.Of(d.Device), d} }

func (k multiplyingKernels) MatMul(s device.Stream, dst device.Tensor, acc device.Accum, a device.Tensor, transA bool, b device.Tensor, transB bool) error {
	k.d.products++
	return k.Kernels.MatMul(s, dst, acc, a, transA, b, transB)
}

// The ranks deal the matrices of Muon among each other.
func TestEachMatrixIsOrthogonalizedOnce(t *testing.T) {
	var all []device.Device
	for _, d := range devices(t, 2, true) {
		all = append(all, &multiplying{Device: d})
	}
	var products [2]int // of the optimizer
	commtest.OnDevices(t, all, quiet(), func(pg *comm.ProcessGroup) error {
		w := must.New(divided(mlp(double), pg, muon, small))
		if err := w.loss(pg, device.Float64, 0).Backward(nil); err != nil {
			return err
		}
		d := pg.Device().(*multiplying)
		before := d.products
		err := w.opt.Step()
		products[pg.Rank()] = d.products - before
		return err
	})
	if want := [2]int{30, 15}; products != want { // three matrices, with three products in each of five iterations
		t.Errorf("the ranks make %v products, want %v", products, want)
	}
}
