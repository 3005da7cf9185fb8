//go:build cgo && linux

package cuda

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"go.uber.org/goleak"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/devicetest"
	"github.com/goddp/goddp/device/half"
	"github.com/goddp/goddp/internal/dl"
)

// role names, in the environment of a process that a test starts, what it is
// to do instead of running tests.
const role = "GODDP_CUDA_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(role) {
	case "":
		goleak.VerifyTestMain(m)
	case "fault":
		os.Exit(fault())
	case "cache":
		os.Exit(fillCache(os.Getenv("GODDP_CUDA_TEST_DIR")))
	default:
		panic("no such role")
	}
}

// needGPU skips a test where there is no GPU; GODDP_REQUIRE_CUDA makes that a
// failure, so that a run on a GPU machine cannot skip unseen.
func needGPU(t testing.TB) {
	t.Helper()
	if n, err := Count(); n == 0 {
		if os.Getenv("GODDP_REQUIRE_CUDA") != "" {
			t.Fatalf("no GPU: %v", err)
		}
		t.Skipf("no GPU: %v", err)
	}
}

// open opens the first GPU for a test.
func openGPU(t testing.TB, opts *Options) *Device {
	t.Helper()
	needGPU(t)
	if opts == nil {
		opts = &Options{}
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	d, err := Open(0, opts)
	if err != nil {
		t.Fatal(err)
	}
	return d.(*Device)
}

// gpu opens the first GPU, and closes it at the test's end.
func gpu(t testing.TB, opts *Options) *Device {
	t.Helper()
	d := openGPU(t, opts)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return d
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// tensor allocates a tensor that lives until the device is closed.
func tensor(t testing.TB, d *Device, dt device.DType, shape ...int) device.Tensor {
	t.Helper()
	b, err := d.Alloc(device.Shape(shape).Len() * dt.Size())
	ok(t, err)
	return device.NewTensor(b, dt, shape...)
}

func upload(t testing.TB, d *Device, v []float32, shape ...int) device.Tensor {
	t.Helper()
	x := tensor(t, d, device.Float32, shape...)
	ok(t, d.CopyIn(d.Compute(), x.Buf, unsafe.Slice((*byte)(unsafe.Pointer(&v[0])), 4*len(v))))
	return x
}

func download(t testing.TB, d *Device, x device.Tensor) []float32 {
	t.Helper()
	v := make([]float32, x.Len())
	ok(t, d.CopyOut(t.Context(), d.Compute(), unsafe.Slice((*byte)(unsafe.Pointer(&v[0])), 4*len(v)), x.Buf))
	return v
}

func TestConformance(t *testing.T) {
	gpu(t, nil) // keeps the context, so that the cases need not make it anew
	devicetest.Run(t, func(t *testing.T) device.Device { return openGPU(t, nil) }, device.Float16, device.BFloat16)
}

// TestTunedProducts runs the suite's products with timed choices.
func TestTunedProducts(t *testing.T) {
	d := gpu(t, &Options{TuneMatMul: true})
	for _, c := range devicetest.Cases(device.BFloat16) {
		if strings.HasPrefix(c.Name, "MatMul") || strings.HasPrefix(c.Name, "Linear") {
			if err := c.Check(t.Context(), d); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestMissingLibrary checks that a library that is not there is an error that
// says where it was looked for.
func TestMissingLibrary(t *testing.T) {
	for _, env := range []string{"GODDP_LIBCUDA", "GODDP_LIBNVRTC", "GODDP_LIBCUBLASLT"} {
		t.Run(env, func(t *testing.T) {
			if env != "GODDP_LIBCUDA" {
				needGPU(t)
			}
			t.Setenv(env, "/nonexistent/libthing.so")
			_, err := Open(0, &Options{CacheDir: privateDir(t)})
			var missing *dl.NotFoundError
			if !errors.As(err, &missing) || len(missing.Tried) != 1 || missing.Tried[0].Place != "/nonexistent/libthing.so" {
				t.Fatalf("Open gave %v, want a NotFoundError that names the file", err)
			}
			if !strings.Contains(err.Error(), env) {
				t.Errorf("the error does not name %s: %v", env, err)
			}
		})
	}
	t.Run("search", func(t *testing.T) {
		n, err := Count()
		if n > 0 {
			t.Skipf("%d GPUs are there", n)
		}
		var missing *dl.NotFoundError
		if !errors.As(err, &missing) {
			t.Skipf("libcuda is there: %v", err)
		}
		var places []string
		for _, p := range missing.Tried {
			places = append(places, p.Place)
		}
		for _, want := range []string{"libcuda.so.1", "/usr/local/cuda/lib64/libcuda.so.1"} {
			if !slices.Contains(places, want) {
				t.Errorf("tried %q, want %s among them", places, want)
			}
		}
	})
}

func TestNoSuchDevice(t *testing.T) {
	needGPU(t)
	if _, err := Open(1000, nil); err == nil || !strings.Contains(err.Error(), "no device 1000") {
		t.Errorf("Open(1000) gave %v", err)
	}
}

// busy enqueues matrix products that take some tenths of a second.
func busy(t testing.TB, d *Device, s device.Stream) {
	const n = 4096
	x, y, z := tensor(t, d, device.Float32, n, n), tensor(t, d, device.Float32, n, n), tensor(t, d, device.Float32, n, n)
	ok(t, d.Kernels().Fill(s, x, 0.5))
	ok(t, d.Kernels().Fill(s, y, 0.25))
	for range 100 {
		ok(t, d.Kernels().MatMul(s, z, device.Store, x, false, y, false))
	}
}

// TestWaiting checks that waits end with their context, that events tell the
// truth meanwhile, and that streams run beside each other.
func TestWaiting(t *testing.T) {
	d := gpu(t, nil)
	s := d.Compute()
	before := s.Record()
	busy(t, d, s)
	after := s.Record()
	if done, err := after.Done(); done || err != nil || !after.Time().IsZero() {
		t.Fatalf("an event behind much work: done %v, at %v, error %v", done, after.Time(), err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := after.Sync(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Sync beyond its deadline gave %v", err)
	}
	if err := d.CopyOut(ctx, s, make([]byte, 100), tensor(t, d, device.Uint8, 100).Buf); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("CopyOut beyond its deadline gave %v", err)
	}
	other, err := d.NewStream(true)
	ok(t, err)
	ok(t, d.Kernels().Fill(other, tensor(t, d, device.Float32, 1000), 1))
	ok(t, other.Sync(t.Context()))
	if done, _ := after.Done(); done {
		t.Error("the compute stream's work was over before another stream's, which does not wait for it")
	}
	ok(t, other.WaitFor(t.Context(), after))
	behind := other.Record()
	ok(t, behind.Sync(t.Context()))
	if done, err := after.Done(); !done || err != nil {
		t.Errorf("a stream went past the event that it waits for: %v, %v", done, err)
	}
	if a, b, c := before.Time(), after.Time(), behind.Time(); !a.Before(b) || b.After(c) || time.Since(c) > time.Minute || time.Until(c) > 0 {
		t.Errorf("times are %v, %v and %v at %v", a, b, c, time.Now())
	}
	ok(t, other.Close())
	ok(t, other.Close())
}

// TestEventsAreRecycled checks that events that nobody holds come back.
func TestEventsAreRecycled(t *testing.T) {
	d := gpu(t, nil)
	for range 20 {
		for range 1000 {
			d.Compute().Record()
		}
		collectGarbage()
	}
	if n := len(d.events.all); n > 10000 {
		t.Errorf("20000 events took %d of CUDA's", n)
	}
}

func TestOutOfMemory(t *testing.T) {
	d := gpu(t, nil)
	held := tensor(t, d, device.Uint8, 1<<20)
	_, err := d.Alloc(1 << 50)
	var oom *device.OutOfMemoryError
	if !errors.As(err, &oom) {
		t.Fatalf("Alloc of a pebibyte gave %v", err)
	}
	if oom.Asked < 1<<50 || oom.InUse < int64(held.Bytes()) || oom.Free <= 0 || oom.Device != "cuda:0" {
		t.Errorf("the error says %+v", oom)
	}
	ok(t, d.Kernels().Fill(d.Compute(), held, 1)) // the device goes on
	ok(t, d.Compute().Sync(t.Context()))

	limited := gpu(t, &Options{MemoryLimit: 64 << 20})
	for range 5 { // each needs what the one before has left in the cache
		for _, size := range []int{40 << 20, 10 << 20, 60 << 20} {
			b, err := limited.Alloc(size)
			ok(t, err)
			limited.Free(b)
		}
	}
	if _, err := limited.Alloc(65 << 20); !errors.Is(err, device.ErrOutOfMemory) {
		t.Errorf("Alloc beyond the limit gave %v", err)
	}
}

// TestLinearKeepsNaN checks the fused activation: a NaN must not become 0.
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
		ok(t, d.Kernels().Linear(d.Compute(), dst, as(x), as(w), as(bias), device.ActReLU))
		ok(t, d.Kernels().Copy(d.Compute(), got, dst))
		for i, y := range download(t, d, got) {
			if isNaN := y != y; isNaN != (i/n == 5) || !isNaN && y != 0 {
				t.Errorf("%v: row %d has %v", dt, i/n, y)
				break
			}
		}
	}
}

// TestTF32 checks that products are rounded to TF32 exactly where asked for.
func TestTF32(t *testing.T) {
	const n = 512
	v := make([]float32, n*n)
	for i := range v {
		v[i] = 1 + float32(i%97)/1024/97 // TF32 has 10 bits of fraction
	}
	worst := func(allow bool) (off float64) {
		d := gpu(t, &Options{AllowTF32: allow})
		x, dst := upload(t, d, v, n, n), tensor(t, d, device.Float32, n, n)
		ok(t, d.Kernels().MatMul(d.Compute(), dst, device.Store, x, false, x, true))
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

func TestClosed(t *testing.T) {
	d := openGPU(t, nil)
	x := tensor(t, d, device.Float32, 4)
	e := d.Compute().Record()
	ok(t, d.Close())
	ok(t, d.Close())
	_, done := e.Done()
	for what, err := range map[string]error{
		"Fill": d.Kernels().Fill(d.Compute(), x, 1), "Done": done, "Sync": d.Compute().Sync(t.Context()),
		"CopyIn": d.CopyIn(d.Compute(), x.Buf, make([]byte, 16)),
	} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s on a closed device gave %v", what, err)
		}
	}
}

// TestStaging moves more than staging memory holds, both ways, on two streams.
func TestStaging(t *testing.T) {
	d := gpu(t, nil)
	src := make([]byte, 3*stagingSize+123)
	for i := range src {
		src[i] = byte(i * 7 >> 3)
	}
	other, err := d.NewStream(false)
	ok(t, err)
	for _, s := range []device.Stream{d.Compute(), other} {
		b := tensor(t, d, device.Uint8, len(src)).Buf
		ok(t, d.CopyIn(s, b, src))
		got := make([]byte, len(src))
		ok(t, d.CopyOut(t.Context(), s, got, b))
		if !slices.Equal(got, src) {
			t.Error("bytes changed on the way")
		}
	}
	ok(t, other.Close())
	if held := d.staging.arena.Stats(); held.InUse+held.Cached > 2*stagingSize {
		t.Errorf("staging took %+v", held)
	}
}

// TestLaunchAllocations checks that launches leave nothing to the collector.
func TestLaunchAllocations(t *testing.T) {
	d := gpu(t, nil)
	k, s := d.Kernels(), d.Compute()
	x, row := tensor(t, d, device.Float32, 64, 64), tensor(t, d, device.Float32, 64)
	ok(t, k.Fill(s, x, 1))
	ok(t, k.Fill(s, row, 1))
	for name, f := range map[string]func() error{
		"Axpby":  func() error { return k.Axpby(s, x, device.Store, x) },
		"Binary": func() error { return k.Binary(s, device.Add, x, x, row) },
		"Sum":    func() error { return k.Sum(s, row, device.Store, x) },
		"MatMul": func() error { return k.MatMul(s, x, device.Store, x, false, x, true) },
		"SGD":    func() error { return k.SGD(s, device.SGDStep{Param: x, Grad: x, LR: 0}) },
	} {
		most := map[string]float64{"Binary": 1, "Sum": 3}[name] // the iteration space
		if n := testing.AllocsPerRun(100, func() { ok(t, f()) }); n > most {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}

func TestBelow(t *testing.T) {
	for _, dt := range []device.DType{device.Float16, device.BFloat16} {
		to, from := half.F16, half.FromF16
		if dt == device.BFloat16 {
			to, from = half.BF16, half.FromBF16
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

// TestTwoDevices drives two GPUs from one process: each by a goroutine that
// moves between threads, and streams of one behind events of the other.
func TestTwoDevices(t *testing.T) {
	needGPU(t)
	if n, _ := Count(); n < 2 {
		t.Skipf("%d GPU, 2 are needed", n)
	}
	var devices [2]device.Device
	for i := range devices {
		d, err := Open(i, &Options{Log: quiet()})
		ok(t, err)
		defer d.Close()
		devices[i] = d
	}
	var wg sync.WaitGroup
	for i, d := range devices {
		wg.Go(func() {
			x := tensor(t, d.(*Device), device.Float32, 1000)
			for round := range 200 {
				if err := d.Kernels().Fill(d.Compute(), x, float64(1000*i+round)); err != nil {
					t.Error(err)
				}
				runtime.Gosched()
				if got := download(t, d.(*Device), x); got[999] != float32(1000*i+round) {
					t.Errorf("%v: round %d gave %v", d, round, got[999])
				}
			}
		})
	}
	wg.Wait()
	first, second := devices[0].(*Device), devices[1].(*Device)
	busy(t, first, first.Compute())
	e := first.Compute().Record()
	ok(t, second.Compute().WaitFor(t.Context(), e))
	f := second.Compute().Record()
	if done, err := f.Done(); done || err != nil {
		t.Errorf("a stream did not wait for another device's event: %v, %v", done, err)
	}
	ok(t, f.Sync(t.Context()))
	if done, err := e.Done(); !done || err != nil {
		t.Errorf("a stream went past another device's event: %v, %v", done, err)
	}
	if gap := f.Time().Sub(e.Time()); gap.Abs() > 10*time.Millisecond {
		t.Errorf("two devices' clocks put an event and its wait %v apart", gap)
	}
}
