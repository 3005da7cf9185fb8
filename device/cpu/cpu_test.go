package cpu

import (
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"go.uber.org/goleak"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/devicetest"
	"github.com/goddp/goddp/internal/kernels"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open makes a device with several threads, so that kernels divide their work even on a machine
// with one core.
func open(t *testing.T) device.Device {
	return New(&Options{Threads: 3, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
}

func TestConformance(t *testing.T) {
	t.Parallel()
	devicetest.Run(t, open)
}

// The matrix products in pure Go pass the conformance suite.
func TestProductsInGo(t *testing.T) {
	t.Parallel()
	d := New(&Options{BLAS: Gonum})
	for _, c := range devicetest.Cases() {
		if strings.HasPrefix(c.Name, "MatMul") || strings.HasPrefix(c.Name, "Linear") || strings.HasPrefix(c.Name, "NaN/") {
			if err := c.Check(t.Context(), d); err != nil {
				t.Error(err)
			}
		}
	}
}

// needOpenBLAS skips a test if OpenBLAS is not installed. With GODDP_REQUIRE_OPENBLAS it fails the
// test instead, so that CI cannot skip tests unnoticed.
func needOpenBLAS(t testing.TB) {
	if _, err := openBLAS(1); err != nil {
		if os.Getenv("GODDP_REQUIRE_OPENBLAS") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

// mutant is a device with a defect in one kernel.
type mutant struct {
	device.Device
	kernels kernels.Kernels
}

func (m mutant) Kernels() device.Kernels { return m.kernels }

// The conformance suite catches defects: each mutant fails the cases that are listed for it, and no
// others.
func TestSuiteCatches(t *testing.T) {
	t.Parallel()
	for _, m := range []struct {
		name  string
		wrap  func(kernels.Kernels) kernels.Kernels
		fails []string
	}{
		{"nothing", func(k kernels.Kernels) kernels.Kernels { return k }, nil},
		{"ignores beta", func(k kernels.Kernels) kernels.Kernels { return ignoresBeta{k} }, []string{"MatMul"}},
		{"reads dst at beta 0", func(k kernels.Kernels) kernels.Kernels { return readsDst{k} }, []string{"Sum"}},
		{"broadcasts the wrong axis", func(k kernels.Kernels) kernels.Kernels { return wrongAxis{k} }, []string{"Binary"}},
		{"confuses two gradients", func(k kernels.Kernels) kernels.Kernels { return confuses{k} }, []string{"LinearGrad"}},
		{"sums naively", func(k kernels.Kernels) kernels.Kernels { return naiveSum{k} }, []string{"Sum"}},
		{"writes behind dst", func(k kernels.Kernels) kernels.Kernels { return overruns{k} }, []string{"Axpby"}},
		{"is not repeatable", func(k kernels.Kernels) kernels.Kernels { return &drifts{Kernels: k} }, []string{"MSEGrad"}},
		{"applies skipped steps", func(k kernels.Kernels) kernels.Kernels { return neverSkips{k} }, []string{"SGD"}},
		{"applies overflows", func(k kernels.Kernels) kernels.Kernels { return neverOverflows{k} }, []string{"SGD"}},
		{"forgets the loss's scale", func(k kernels.Kernels) kernels.Kernels { return forgetsScale{k} }, []string{"SGD"}},
		{"does without a master", func(k kernels.Kernels) kernels.Kernels { return masterless{k} }, []string{"SGD"}},
		{"forgets that Adam begins with zeros", func(k kernels.Kernels) kernels.Kernels { return uncorrected{k} }, []string{"AdamW"}},
		{"decays as Adam, not as AdamW", func(k kernels.Kernels) kernels.Kernels { return coupled{k} }, []string{"AdamW"}},
		{"drops a NaN in ReLU", func(k kernels.Kernels) kernels.Kernels { return dropsNaN{k} }, []string{"Unary"}},
		{"drops a NaN in ReLU's derivative", func(k kernels.Kernels) kernels.Kernels { return dropsNaNGrad{k} }, []string{"NaN"}},
		{"rounds twice", func(k kernels.Kernels) kernels.Kernels { return roundsTwice{k} }, []string{"Copy"}},
		{"swaps the operands' strides", func(k kernels.Kernels) kernels.Kernels { return swapsStrides{k} }, []string{"CopyStrided", "AccumulateStrided"}},
		{"adds what is to be skipped", func(k kernels.Kernels) kernels.Kernels { return neverLeavesOut{k} }, []string{"ScatterAdd"}},
		{"draws by the call", func(k kernels.Kernels) kernels.Kernels { return ignoresOffset{k} }, []string{"Uniform"}},
	} {
		t.Run(m.name, func(t *testing.T) {
			d := open(t)
			var failed []string
			for _, c := range devicetest.Cases() {
				kernel, dt, typed := strings.Cut(c.Name, "/")
				if typed && dt == "float64" || !concerns(m.fails, kernel) {
					continue
				}
				if err := c.Check(t.Context(), mutant{d, m.wrap(kernels.Of(d))}); err != nil {
					t.Logf("caught: %v", err)
					failed = append(failed, kernel)
				}
			}
			if failed = slices.Compact(failed); !slices.Equal(failed, m.fails) { // a case may have failed in several types
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

type swapsStrides struct{ kernels.Kernels }

func (m swapsStrides) CopyStrided(s device.Stream, shape device.Shape, dst device.Tensor, to kernels.Layout, acc device.Accum, src device.Tensor, from kernels.Layout) error {
	if dst.Len() == src.Len() {
		to, from = from, to
	}
	return m.Kernels.CopyStrided(s, shape, dst, to, acc, src, from)
}

type neverLeavesOut struct{ kernels.Kernels }

func (m neverLeavesOut) ScatterAdd(s device.Stream, dst device.Tensor, acc device.Accum, src, index device.Tensor, _ int) error {
	return m.Kernels.ScatterAdd(s, dst, acc, src, index, -1)
}

type readsDst struct{ kernels.Kernels }

func (m readsDst) Sum(s device.Stream, dst device.Tensor, acc device.Accum, src device.Tensor) error {
	if err := m.Axpby(s, dst, device.Accum{Alpha: acc.Beta}, dst); err != nil {
		return err
	}
	return m.Kernels.Sum(s, dst, device.Accum{Alpha: acc.Alpha, Beta: 1}, src)
}

type wrongAxis struct{ kernels.Kernels }

func (m wrongAxis) Binary(s device.Stream, op kernels.BinaryOp, dst, x, y device.Tensor) error {
	if n := len(dst.Shape); n == 2 && dst.Shape[0] == dst.Shape[1] && len(y.Shape) == 1 {
		y = y.Reshape(y.Len(), 1)
	}
	return m.Kernels.Binary(s, op, dst, x, y)
}

type confuses struct{ kernels.Kernels }

func (m confuses) LinearGrad(s device.Stream, dw device.Tensor, accW device.Accum, db device.Tensor, accB device.Accum, g, x device.Tensor) error {
	return m.Kernels.LinearGrad(s, dw, accB, db, accW, g, x)
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

type neverSkips struct{ kernels.Kernels }

func (m neverSkips) SGD(s device.Stream, steps ...kernels.SGDStep) error {
	for i := range steps {
		steps[i].Skip = device.Tensor{}
	}
	return m.Kernels.SGD(s, steps...)
}

type neverOverflows struct{ kernels.Kernels }

func (m neverOverflows) SGD(s device.Stream, steps ...kernels.SGDStep) error {
	for i := range steps {
		steps[i].Overflow = device.Tensor{}
	}
	return m.Kernels.SGD(s, steps...)
}

type forgetsScale struct{ kernels.Kernels }

func (m forgetsScale) SGD(s device.Stream, steps ...kernels.SGDStep) error {
	for i := range steps {
		steps[i].LossScale = 0
	}
	return m.Kernels.SGD(s, steps...)
}

// masterless updates the parameter instead of the master weight, so roundings accumulate.
type masterless struct{ kernels.Kernels }

func (m masterless) SGD(s device.Stream, steps ...kernels.SGDStep) (err error) {
	for _, p := range steps {
		if p.Master.IsZero() {
			err = errors.Join(err, m.Kernels.SGD(s, p))
		} else {
			err = errors.Join(err, m.Copy(s, p.Master, p.Param), m.Kernels.SGD(s, p), m.Copy(s, p.Master, p.Param))
		}
	}
	return err
}

type uncorrected struct{ kernels.Kernels }

func (m uncorrected) AdamW(s device.Stream, steps ...kernels.AdamWStep) error {
	for i := range steps {
		steps[i].Step = max(steps[i].Step, 2)
	}
	return m.Kernels.AdamW(s, steps...)
}

type coupled struct{ kernels.Kernels }

func (m coupled) AdamW(s device.Stream, steps ...kernels.AdamWStep) error {
	for i := range steps {
		steps[i].Coupled = true
	}
	return m.Kernels.AdamW(s, steps...)
}

type dropsNaN struct{ kernels.Kernels }

func (m dropsNaN) Unary(s device.Stream, op kernels.UnaryOp, dst, x device.Tensor) error {
	err := m.Kernels.Unary(s, op, dst, x)
	if op == kernels.ReLU && dst.DType == device.Float32 {
		d := device.Elements[float32](dst)
		for i, v := range d {
			if v != v {
				d[i] = 0
			}
		}
	}
	return err
}

// dropsNaNGrad returns the derivative 0 where ReLU's result is NaN.
type dropsNaNGrad struct{ kernels.Kernels }

func (m dropsNaNGrad) UnaryGrad(s device.Stream, op kernels.UnaryOp, dst device.Tensor, acc device.Accum, g, x, y device.Tensor) error {
	if op == kernels.ReLU && dst.DType == device.Float32 {
		y = device.HostTensor(slices.Clone(device.Elements[float32](y)), device.Invalid).Reshape(y.Shape...)
		for i, v := range device.Elements[float32](y) {
			if v != v {
				device.Elements[float32](y)[i] = 0
			}
		}
	}
	return m.Kernels.UnaryGrad(s, op, dst, acc, g, x, y)
}

type roundsTwice struct{ kernels.Kernels }

func (m roundsTwice) Copy(s device.Stream, dst, src device.Tensor) error {
	if dst.DType != device.Float16 || src.DType != device.Float64 {
		return m.Kernels.Copy(s, dst, src)
	}
	between := device.HostTensor(make([]float32, src.Len()), device.Float32)
	if err := m.Kernels.Copy(s, between, src); err != nil {
		return err
	}
	return m.Kernels.Copy(s, dst, between)
}

type ignoresOffset struct{ kernels.Kernels }

func (m ignoresOffset) Uniform(s device.Stream, dst device.Tensor, lo, hi float64, seed, offset uint64) error {
	return m.Kernels.Uniform(s, dst, lo, hi, seed, 0)
}
