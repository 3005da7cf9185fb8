//go:build cgo && linux

package cuda

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/goddp/goddp/device"
)

// A race is run once: a later device finds its result in the cache. After damage it is run again.
func TestEmulatedRacesAreKept(t *testing.T) {
	dir := privateDir(t)
	products := func() int32 { // products: how many the first product of a shape and its gradients take
		d := multiplying(t, false)
		d.cache = dir
		d.kernels.races = openChoices(d, d.kernels.blas)
		count, err := d.kernels.blas.lib.Lookup("fakegpu_products")
		ok(t, err)
		before := *(*int32)(count)
		x, w, y := tensor(t, d, device.Float32, 64, 128), tensor(t, d, device.Float32, 96, 128), tensor(t, d, device.Float32, 64, 96)
		ok(t, d.kernels.PrepareLinearGrad(d.compute, y, x, w, tensor(t, d, device.Float32, 96)))
		ok(t, d.compute.Sync(t.Context()))
		return *(*int32)(count) - before
	}
	const noRace = 3 // the gradients of x, of w, and in each way of w and the bias
	if n := products(); n <= noRace {
		t.Errorf("%d products, at first", n)
	}
	if n := products(); n > noRace {
		t.Errorf("%d products, when the results of races are kept", n)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.races"))
	if err != nil || len(files) != 1 {
		t.Fatalf("the cache holds %q, %v", files, err)
	}
	ok(t, os.Truncate(files[0], 50))
	if n := products(); n <= noRace {
		t.Errorf("%d products, after damage", n)
	}
}
