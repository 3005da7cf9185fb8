package cpu

import (
	"log/slog"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/devicetest"
	"github.com/goddp/goddp/internal/kernels"
	"github.com/goddp/goddp/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m, nil) }

// open makes a device with several threads, so that kernels divide their work even on a machine
// with one core.
func open(t *testing.T) device.Device {
	return New(&Options{Threads: 3, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
}

// Without -long the kernels are checked in Float32, and the updates also in a type that has master weights.
func TestConformance(t *testing.T) {
	for _, c := range devicetest.Cases() {
		name, dt, typed := strings.Cut(c.Name, "/")
		if typed && dt != "float32" && !testkit.IsLong() && !(dt == "bfloat16" && slices.Contains([]string{"SGD", "AdamW", "RMSProp"}, name)) {
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			d, check := open(t), c.Check
			if !testkit.IsLong() {
				check = c.CheckQuickly
			}
			if err := check(t.Context(), d); err != nil {
				t.Error(err)
			}
			if err := d.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		})
	}
}

// The matrix products in pure Go pass the conformance suite where OpenBLAS does the others.
func TestProductsInGo(t *testing.T) {
	testkit.Need(t, openBLASLibrary)
	d := New(&Options{BLAS: Gonum})
	for _, c := range devicetest.Cases() {
		name, dt, _ := strings.Cut(c.Name, "/")
		if isProduct := strings.HasPrefix(name, "MatMul") || strings.HasPrefix(name, "Linear") || name == "NaN"; isProduct && (dt == "float32" || testkit.IsLong()) {
			if err := c.CheckQuickly(t.Context(), d); err != nil {
				t.Error(err)
			}
		}
	}
}

var openBLASLibrary = testkit.Requires("OpenBLAS", func() error {
	_, err := openBLAS(1)
	return err
})

// mutant is a device with a defect in one kernel.
type mutant struct {
	device.Device
	kernels kernels.Kernels
}

func (m mutant) Kernels() device.Kernels { return m.kernels }

// The conformance suite catches what its comparison of results is to see: each mutant fails the cases that are listed for it,
// and no others.
func TestSuiteCatches(t *testing.T) {
	for _, m := range []struct {
		name  string
		wrap  func(kernels.Kernels) kernels.Kernels
		fails []string
	}{
		{"nothing", func(k kernels.Kernels) kernels.Kernels { return k }, nil},
		{"ignores beta", func(k kernels.Kernels) kernels.Kernels { return ignoresBeta{k} }, []string{"MatMul"}},
		{"reads dst at beta 0", func(k kernels.Kernels) kernels.Kernels { return readsDst{k} }, []string{"Sum"}},
		{"sums naively", func(k kernels.Kernels) kernels.Kernels { return naiveSum{k} }, []string{"Sum"}},
		{"writes behind dst", func(k kernels.Kernels) kernels.Kernels { return overruns{k} }, []string{"Axpby"}},
		{"is not repeatable", func(k kernels.Kernels) kernels.Kernels { return &drifts{Kernels: k} }, []string{"MSEGrad"}},
	} {
		t.Run(m.name, func(t *testing.T) {
			d := open(t)
			var failed []string
			for _, c := range devicetest.Cases() {
				kernel, dt, typed := strings.Cut(c.Name, "/")
				if typed && dt != "float32" || !concerns(m.fails, kernel) {
					continue
				}
				if err := c.CheckQuickly(t.Context(), mutant{d, m.wrap(kernels.Of(d))}); err != nil {
					t.Logf("caught: %v", err)
					failed = append(failed, kernel)
				}
			}
			if !slices.Equal(failed, m.fails) {
				t.Errorf("cases %v failed, want %v", failed, m.fails)
			}
		})
	}
}

// concerns reports whether to run a case for a mutant: the cases that must catch it, and two that
// must not.
func concerns(fails []string, kernel string) bool {
	return slices.Contains(fails, kernel) || slices.Contains([]string{"Memory", "CrossEntropy"}, kernel)
}

type ignoresBeta struct{ kernels.Kernels }

func (m ignoresBeta) MatMul(s device.Stream, dst device.Tensor, acc device.Accum, x device.Tensor, tx bool, y device.Tensor, ty bool) error {
	return m.Kernels.MatMul(s, dst, device.Accum{Alpha: acc.Alpha}, x, tx, y, ty)
}

type readsDst struct{ kernels.Kernels }

func (m readsDst) Sum(s device.Stream, dst device.Tensor, acc device.Accum, src device.Tensor) error {
	if err := m.Axpby(s, dst, device.Accum{Alpha: acc.Beta}, dst); err != nil {
		return err
	}
	return m.Kernels.Sum(s, dst, device.Accum{Alpha: acc.Alpha, Beta: 1}, src)
}

type naiveSum struct{ kernels.Kernels }

func (m naiveSum) Sum(s device.Stream, dst device.Tensor, acc device.Accum, src device.Tensor) error {
	if dst.DType != device.Float32 || dst.Len() != 1 || acc != device.Store {
		return m.Kernels.Sum(s, dst, acc, src)
	}
	var sum float32
	for _, v := range device.Elements[float32](src) {
		sum += v
	}
	device.Elements[float32](dst)[0] = sum
	return nil
}

type overruns struct{ kernels.Kernels }

func (m overruns) Axpby(s device.Stream, dst device.Tensor, acc device.Accum, x device.Tensor) error {
	if n := dst.Bytes(); n > 0 && cap(dst.Buf.Host()) == n {
		mem := dst.Buf.Host()
		*(*byte)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(mem)), n)) ^= 1
	}
	return m.Kernels.Axpby(s, dst, acc, x)
}

type drifts struct {
	kernels.Kernels
	calls float64
}

func (m *drifts) MSEGrad(s device.Stream, dst device.Tensor, acc device.Accum, g, x, y device.Tensor) error {
	m.calls++
	acc.Alpha *= 1 + 1e-7*float64(int(m.calls)%2)
	return m.Kernels.MSEGrad(s, dst, acc, g, x, y)
}
