//go:build cgo && linux

package cuda

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"
	"unsafe"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/dl"
	"github.com/goddp/goddp/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m, map[string]func(){"fault": func() { os.Exit(fault()) }}) }

// needGPU skips a test if the machine has no GPU. With GODDP_REQUIRE_CUDA it fails the test
// instead, so that a run on a GPU machine cannot skip tests unnoticed.
func needGPU(t testing.TB) {
	t.Helper()
	if n, err := Count(); n == 0 {
		if os.Getenv("GODDP_REQUIRE_CUDA") != "" {
			t.Fatalf("no GPU: %v", err)
		}
		t.Skipf("no GPU: %v", err)
	}
}

// openGPU opens the first GPU for a test.
func openGPU(t testing.TB, opts *Options) *gpuDevice {
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
	return d.(*gpuDevice)
}

// gpu opens the first GPU and closes it when the test ends.
func gpu(t testing.TB, opts *Options) *gpuDevice {
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

// tensor allocates a tensor that is valid until the device is closed.
func tensor(t testing.TB, d *gpuDevice, dt device.DType, shape ...int) device.Tensor {
	t.Helper()
	b, err := d.Alloc(device.Shape(shape).Len() * dt.Size())
	ok(t, err)
	return device.NewTensor(b, dt, shape...)
}

func upload(t testing.TB, d *gpuDevice, v []float32, shape ...int) device.Tensor {
	t.Helper()
	x := tensor(t, d, device.Float32, shape...)
	ok(t, d.CopyIn(d.Compute(), x.Buf, unsafe.Slice((*byte)(unsafe.Pointer(&v[0])), 4*len(v))))
	return x
}

func download(t testing.TB, d *gpuDevice, x device.Tensor) []float32 {
	t.Helper()
	v := make([]float32, x.Len())
	ok(t, d.CopyOut(t.Context(), d.Compute(), unsafe.Slice((*byte)(unsafe.Pointer(&v[0])), 4*len(v)), x.Buf))
	return v
}

// The error for a missing library lists the places that were searched.
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
}

func TestNoSuchDevice(t *testing.T) {
	needGPU(t)
	if _, err := Open(1000, nil); err == nil || !strings.Contains(err.Error(), "no device 1000") {
		t.Errorf("Open(1000) gave %v", err)
	}
}

// quiet returns a logger that discards everything, for tests that open many devices.
func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }
