//go:build cgo && linux

package cuda

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
	"github.com/goddp/goddp/internal/testkit/devicetest"
	"github.com/goddp/goddp/internal/testkit/fakegpu"
)

func TestConformance(t *testing.T) {
	gpu(t, nil) // keeps the context, so that opening a device for each case is quick
	devicetest.Run(t, func(t *testing.T) device.Device { return openGPU(t, nil) }, device.Float16, device.BFloat16)
}

// The kernels' sources, compiled for the host, pass the conformance suite in Float32, and the quick cases in the other
// types. This tests their arithmetic without a GPU. It finds neither races nor accesses out of bounds, and tests nothing of
// the real libraries.
func TestEmulatedConformance(t *testing.T) {
	fakegpu.Use(t)
	d := gpu(t, &Options{Log: quiet()})
	others := []string{"Axpby", "Softmax"} // in Float64 and Float16
	bfloat16 := append(others, "SGD", "AdamW", "RMSProp", "ScaleBy", "SwiGLU", "Attention", "Linear", "Linears", "LinearUnary", "LinearUnaryGrad", "CrossEntropyInPlace", "Gather", "Rotate", "AttendLast",
		"MaxPool2d", "BatchNormReLU", "MSEGrad", "NormNaN")
	for _, c := range devicetest.Cases(device.Float16, device.BFloat16) {
		name, dt, typed := strings.Cut(c.Name, "/")
		if typed && dt != "float32" && !slices.Contains(others, name) && !(dt == "bfloat16" && slices.Contains(bfloat16, name)) {
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			if err := c.CheckQuickly(t.Context(), d); err != nil {
				t.Error(err)
			}
		})
	}
}

// Each function of a source is in one of the source's programs. A function in none could not be launched.
func TestProgramsOfSources(t *testing.T) {
	for name, functions := range new(kernelSet).files() {
		in := map[string]int{}
		for _, p := range (program{name: name, functions: functions}).splitSource() {
			for f := range p.functions {
				in[f]++
			}
		}
		for f := range functions {
			if in[f] != 1 {
				t.Errorf("%s of %s is in %d programs", f, name, in[f])
			}
		}
	}
}

// The kernels that Compile compiles end in their types: it would compile no others.
func TestCompileWantsTypes(t *testing.T) {
	_, err := new(gpuDevice).Compile(t.Context(), "sums.cu", "", "sum_float32", "sum_all")
	if err == nil || !strings.Contains(err.Error(), "sums.cu: function sum_all: want a name that ends in a floating-point type") {
		t.Errorf("Compile returned %v", err)
	}
}

// Linear with a ReLU keeps a NaN and does not make it 0.
func TestLinearKeepsNaN(t *testing.T) {
	d := gpu(t, nil)
	const m, n, k = 256, 512, 128
	v := make([]float32, m*k)
	v[5*k+3] = float32(math.NaN())
	x := upload(t, d, v, m, k)
	w, bias := tensor(t, d, device.Float32, n, k), tensor(t, d, device.Float32, n)
	ok(t, d.Kernels().Fill(d.Compute(), w, 1))
	ok(t, d.Kernels().Fill(d.Compute(), bias, -1))
	for _, dt := range []device.DType{device.Float32, device.Float64, device.BFloat16, device.Float16} {
		as := func(src device.Tensor) device.Tensor {
			to := tensor(t, d, dt, src.Shape...)
			ok(t, d.Kernels().Copy(d.Compute(), to, src))
			return to
		}
		dst, got := tensor(t, d, dt, m, n), tensor(t, d, device.Float32, m, n)
		ok(t, kernels.Of(d).Linear(d.Compute(), dst, as(x), as(w), as(bias), kernels.ActReLU))
		ok(t, d.Kernels().Copy(d.Compute(), got, dst))
		for i, y := range download(t, d, got) {
			if isNaN := y != y; isNaN != (i/n == 5) || !isNaN && y != 0 {
				t.Errorf("%v: row %d has %v", dt, i/n, y)
				break
			}
		}
	}
}

// Float32 products are rounded to TF32 if and only if Options.AllowTF32 is set.
func TestTF32(t *testing.T) {
	const n = 512
	v := make([]float32, n*n)
	for i := range v {
		v[i] = 1 + float32(i%97)/1024/97 // more digits than the 10 fraction bits of TF32 can hold
	}
	worst := func(allow bool) (off float64) {
		d := gpu(t, &Options{AllowTF32: allow})
		x, dst := upload(t, d, v, n, n), tensor(t, d, device.Float32, n, n)
		ok(t, kernels.Of(d).MatMul(d.Compute(), dst, device.Store, x, false, x, true))
		got := download(t, d, dst)
		for i := range n {
			var want float64
			for l := range n {
				want += float64(v[i*n+l]) * float64(v[l])
			}
			off = max(off, math.Abs(float64(got[i*n])-want)/want)
		}
		return off
	}
	if off := worst(false); off > 1e-5 {
		t.Errorf("float32 products are off by %g", off)
	}
	if off := worst(true); off < 2e-5 || off > 2e-3 {
		t.Errorf("TF32 products are off by %g", off)
	}
}

func TestMisuse(t *testing.T) {
	d := gpu(t, nil)
	x := device.HostTensor(make([]float32, 4), device.Float32)
	panics := func(what string, f func()) {
		defer func() {
			if _, ok := recover().(error); !ok {
				t.Errorf("%s did not panic with an error", what)
			}
		}()
		f()
	}
	panics("an operand in host memory", func() { d.Kernels().Fill(d.Compute(), x, 1) })
	other := gpu(t, nil)
	panics("another device's stream", func() { d.Kernels().Fill(other.Compute(), tensor(t, d, device.Float32, 4), 1) })
}

// Launches allocate nothing on Go's heap, apart from the iteration space of two of them.
func TestLaunchAllocations(t *testing.T) {
	d := gpu(t, nil)
	k, s := kernels.Of(d), d.Compute()
	x, row := tensor(t, d, device.Float32, 64, 64), tensor(t, d, device.Float32, 64)
	raised, hash := tensor(t, d, device.Uint8), tensor(t, d, device.Int64)
	blocks := tensor(t, d, device.Uint8, kernels.QuantizedLen(x.Len()))
	few, substitute := tensor(t, d, device.Float32, 4, 64), tensor(t, d, device.Float32, 4, 64)
	ok(t, k.Fill(s, x, 1))
	ok(t, k.Fill(s, row, 1))
	ok(t, k.Fill(s, few, 1))
	sgd := []kernels.SGDStep{{Param: x, Grad: x}, {Param: few, Grad: few}}
	adamW := []kernels.AdamWStep{{Param: x, Grad: x, Mean: x, Variance: x, Step: 1}, {Param: few, Grad: few, Mean: few, Variance: few, Step: 1}}
	for name, f := range map[string]func() error{
		"Axpby":     func() error { return k.Axpby(s, x, device.Store, x) },
		"Binary":    func() error { return k.Binary(s, kernels.Add, x, x, row) },
		"Sum":       func() error { return k.Sum(s, row, device.Store, x) },
		"MatMul":    func() error { return k.MatMul(s, x, device.Store, x, false, x, true) },
		"SGD":       func() error { return k.SGD(s, sgd...) },
		"AdamW":     func() error { return k.AdamW(s, adamW...) },
		"NonFinite": func() error { return k.NonFinite(s, raised, x) },
		"Hash":      func() error { return k.Hash(s, hash, x) },

		"Quantize":       func() error { return k.Quantize(s, blocks, x) },
		"Dequantize":     func() error { return k.Dequantize(s, x, device.Store, blocks) },
		"Orthonormalize": func() error { return k.Orthonormalize(s, few, substitute) },
	} {
		most := map[string]float64{"Binary": 1, "Sum": 3}[name] // the iteration space
		if n := testing.AllocsPerRun(100, func() { ok(t, f()) }); n > most {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}

func TestBelow(t *testing.T) {
	for _, dt := range []device.DType{device.Float16, device.BFloat16} {
		to, from := kernels.F16, kernels.FromF16
		if dt == device.BFloat16 {
			to, from = kernels.BF16, kernels.FromBF16
		}
		for bits := range 1 << 16 {
			v := from(uint16(bits))
			if v != v || math.IsInf(float64(v), 0) {
				continue
			}
			b := below(dt, float64(v))
			if b >= float64(v) || !math.IsInf(b, 0) && from(to(float32(b))) != float32(b) {
				t.Fatalf("%v: below %v is %v", dt, v, b)
			}
			if beside := float64(v) + math.Abs(float64(v))/1e6 + 1e-30; below(dt, beside) < float64(v) {
				t.Fatalf("%v: below %v is %v, and %v is nearer", dt, beside, below(dt, beside), v)
			}
		}
	}
	for _, v := range []float64{1, -1, 0, 1e-40, 0.1} {
		if b := below(device.Float32, v); b >= v || float64(float32(b)) != b {
			t.Errorf("float32 below %v is %v", v, b)
		}
		if b := below(device.Float64, v); b >= v {
			t.Errorf("float64 below %v is %v", v, b)
		}
	}
}
