//go:build cgo && linux

package cuda

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/devicetest"
	"github.com/goddp/goddp/internal/kernels"
)

// fusing is a device whose LinearGrad always uses one kernel if cuBLAS has it, whether or not that
// is faster.
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
	d := gpu(t, nil)
	fused := 0
	for _, c := range devicetest.Cases(device.Float16, device.BFloat16) {
		if strings.HasPrefix(c.Name, "LinearGrad") {
			f := &fusing{gpuDevice: d}
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

// The fake libcublasLt multiplies column-major matrices, as cuBLAS's documentation specifies. The
// test compares its results for every order and transposition of operands.
func TestEmulatedOperandOrder(t *testing.T) {
	d := multiplying(t, false)
	k, s := d.kernels, d.Compute()
	const m, n, inner = 4, 3, 5
	numbers := func(rows, cols int, phase float64) []float32 {
		v := make([]float32, rows*cols)
		for i := range v {
			v[i] = float32(math.Sin(phase + 1.7*float64(i)))
		}
		return v
	}
	put := func(v []float32, shape ...int) device.Tensor {
		x := upload(t, d, v, shape...)
		ok(t, s.Sync(t.Context())) // the fake libcublasLt does not wait for the copy
		return x
	}
	same := func(what string, got device.Tensor, want func(i, j int) float32) {
		t.Helper()
		cols := got.Shape[len(got.Shape)-1]
		for at, v := range download(t, d, got) {
			if w := want(at/cols, at%cols); math.Abs(float64(v-w)) > 1e-5 {
				t.Errorf("%s: element %d is %v, want %v", what, at, v, w)
			}
		}
	}
	transposed := func(v []float32, rows, cols int) []float32 {
		out := make([]float32, len(v))
		for i := range rows {
			for j := range cols {
				out[j*rows+i] = v[i*cols+j]
			}
		}
		return out
	}
	dot := func(x, y []float32, i, j int) (sum float32) { // dot: of row i of x [m inner] and column j of y [inner n]
		for l := range inner {
			sum += x[i*inner+l] * y[l*n+j]
		}
		return sum
	}

	x, y, before := numbers(m, inner, 0), numbers(inner, n, 1), numbers(m, n, 2)
	px, py := [2]device.Tensor{put(x, m, inner), put(transposed(x, m, inner), inner, m)}, [2]device.Tensor{put(y, inner, n), put(transposed(y, inner, n), n, inner)}
	for tx, a := range px {
		for ty, b := range py {
			dst := put(before, m, n)
			ok(t, k.MatMul(s, dst, device.Accum{Alpha: 2, Beta: -1}, a, tx == 1, b, ty == 1))
			same(fmt.Sprint("MatMul, transposed: ", tx, ty), dst, func(i, j int) float32 { return 2*dot(x, y, i, j) - before[i*n+j] })
		}
	}
	bias := numbers(1, n, 3)
	dst := put(before, m, n)
	ok(t, k.Linear(s, dst, px[0], py[1], put(bias, n), kernels.NoActivation))
	same("Linear", dst, func(i, j int) float32 { return dot(x, y, i, j) + bias[j] })
	ok(t, k.Linear(s, dst, px[0], py[1], put(bias, n), kernels.ActReLU))
	same("the product before a ReLU", dst, func(i, j int) float32 { return dot(x, y, i, j) }) // the kernel that follows does nothing here

	// The weight's gradient is gᵀ·x [m n], for g [inner m] and x [inner n].
	dw, db := put(before, m, n), put(numbers(1, m, 4), m)
	ok(t, k.gradsFused(s, linearGrad{dw, device.Accum{Alpha: 0.5, Beta: 1}, db, device.Store, px[1], py[0]}))
	same("dw", dw, func(i, j int) float32 { return dot(x, y, i, j)/2 + before[i*n+j] })
	same("db", db, func(_, i int) (sum float32) {
		for _, v := range x[i*inner : (i+1)*inner] {
			sum += v
		}
		return sum
	})
	one := linearGrad{put(before, m, n), device.Store, db, device.Store, put(numbers(1, m, 5), 1, m), put(numbers(1, n, 6), 1, n)}
	if err := k.gradsFused(s, one); !errors.Is(err, errUnsupported) {
		t.Errorf("a kernel that cuBLAS does not have gave %v", err)
	}
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
