package cpu

import (
	"bytes"
	"fmt"
	"log/slog"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
	"github.com/goddp/goddp/internal/kernels"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/devicetest"
)

var oneDNNLibrary = testkit.Requires("oneDNN", func() error {
	lib, err := openOneDNN(slog.Default())
	if err == nil && lib == nil {
		err = fmt.Errorf("it is not used here")
	}
	return err
})

// The package's own convolutions pass the conformance suite where oneDNN does the others.
func TestConvolutionsInGo(t *testing.T) {
	testkit.Need(t, oneDNNLibrary)
	t.Setenv("GODDP_ONEDNN", "none")
	d := open(t)
	for _, c := range devicetest.Cases() {
		if name, dt, _ := strings.Cut(c.Name, "/"); strings.HasPrefix(name, "Conv") && dt == "float32" {
			if err := c.CheckQuickly(t.Context(), d); err != nil {
				t.Error(err)
			}
		}
	}
}

// A device without oneDNN logs one warning, at its first convolution.
func TestWithoutOneDNN(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("needs amd64, where oneDNN is looked for")
	}
	t.Setenv("GODDP_ONEDNN", "/nonexistent/libdnnl.so")
	var log bytes.Buffer
	d := New(&Options{BLAS: Gonum, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if log.Len() > 0 {
		t.Errorf("without a convolution, logged %q", log.String())
	}
	for range 2 {
		convolutions(t, d, convShape{1, 2, 5, 5, 3, 3, kernels.Conv{Groups: 1}}, device.Float32, false)
	}
	if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "level=WARN") || !strings.Contains(got, "remedy=") {
		t.Errorf("logged %q, want one warning with a remedy", got)
	}
}

type convShape struct {
	n, c, h, w, o, kernel int
	p                     kernels.Conv // 0 counts as 1 in Stride and Dilation
}

// convolutions returns a convolution with a bias, and the gradients of its images and of its weight.
func convolutions(t *testing.T, d device.Device, z convShape, dt device.DType, last bool) (out [3][]float64) {
	k, s, p := kernels.Of(d), d.Compute(), z.p
	p.ChannelsLast = last
	for i := range 2 {
		p.Stride[i], p.Dilation[i] = max(p.Stride[i], 1), max(p.Dilation[i], 1)
	}
	made := func(shape device.Shape) device.Tensor {
		return device.NewTensor(device.HostBuffer(aligned(shape.Len()*dt.Size()), nil), dt, shape...)
	}
	put := func(shape ...int) device.Tensor {
		to := made(shape)
		if err := k.Copy(s, to, host(random(to.Len()))); err != nil {
			t.Fatal(err)
		}
		return to
	}
	x, w := put(z.n, z.c, z.h, z.w), put(z.o, z.c/p.Groups, z.kernel, z.kernel)
	if last {
		x, w = put(z.n, z.h, z.w, z.c), put(z.o, z.kernel, z.kernel, z.c/p.Groups)
	}
	shape := p.Shape(x.Shape, w.Shape)
	results := [3]device.Tensor{made(shape), made(x.Shape), made(w.Shape)}
	g := put(shape...)
	half := device.Accum{Alpha: 0.5, Beta: 1} // for one gradient, so that both ways of accumulating are taken
	for _, err := range []error{
		k.Conv2d(s, results[0], x, w, put(z.o), p),
		k.Conv2dGradInput(s, results[1], half, g, w, p),
		k.Conv2dGradWeight(s, results[2], device.Store, g, x, p),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for i, r := range results {
		out[i] = make([]float64, r.Len())
		if err := k.Copy(s, host(out[i]), r); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// Threads share the images of a convolution, because the parts then lie together. They share the channels if there are too few
// images, or if each would copy a large weight. With channels last they do so only if a convolution is expensive, because the
// parts then lie in pieces.
func TestConvolutionIsDivided(t *testing.T) {
	for _, c := range []struct {
		name             string
		n, c, o, groups  int
		size, threads    int
		of               int
		images, channels int
	}{
		{"large images", 8, 64, 64, 1, 56, 2, convResult, 2, 1},
		{"depthwise", 8, 96, 96, 96, 56, 2, convResult, 2, 1},
		{"one image", 1, 64, 64, 1, 56, 2, convImages, 1, 2},
		{"a large weight", 8, 512, 512, 1, 7, 2, convResult, 1, 2},
		{"a large weight's gradient", 8, 512, 512, 1, 7, 2, convWeight, 1, 2},
		{"an odd batch", 3, 64, 64, 1, 28, 2, convResult, 1, 2},
		{"one image of few channels", 1, 64, 3, 1, 56, 4, convResult, 1, 1},
		{"one depthwise image", 1, 96, 96, 96, 56, 2, convResult, 1, 2},
		{"one image, channels last", 1, 64, 64, 1, 56, 2, convResult, 1, 2},
		{"one depthwise image, channels last", 1, 96, 96, 96, 56, 2, convResult, 1, 1},
	} {
		z := convolution{of: c.of, channelsLast: strings.HasSuffix(c.name, "last"), ConvSizes: operand.ConvSizes{
			N: c.n, C: c.c, H: c.size, W: c.size, O: c.o, OH: c.size, OW: c.size,
			Groups: c.groups, InGroup: c.c / c.groups, PerOut: c.o / c.groups, Window: kernels.Window{Kernel: [2]int{3, 3}},
		}}
		if images, channels := z.divide(c.threads); images != c.images || channels != c.channels {
			t.Errorf("%s: %d parts of the images and %d of the channels, want %d and %d", c.name, images, channels, c.images, c.channels)
		}
	}
}

// The convolutions of ResNets, of MobileNets and of U-Nets have the values of the package's own kernels in Float64,
// with any number of threads, within 4e-6 of the largest, and always the same bits.
func TestOneDNN(t *testing.T) {
	testkit.Need(t, oneDNNLibrary)
	pair := func(n int) [2]int { return [2]int{n, n} }
	shapes := []convShape{
		{2, 3, 32, 32, 16, 7, kernels.Conv{Stride: pair(2), Padding: pair(3), Groups: 1}},
		{3, 64, 14, 14, 64, 3, kernels.Conv{Padding: pair(1), Groups: 1}},
		{2, 32, 15, 13, 48, 3, kernels.Conv{Stride: pair(2), Padding: pair(1), Groups: 1}},
		{5, 40, 8, 8, 24, 1, kernels.Conv{Groups: 1}},
		{1, 32, 14, 14, 64, 1, kernels.Conv{Stride: pair(2), Groups: 1}},
		{4, 96, 7, 7, 96, 3, kernels.Conv{Padding: pair(1), Groups: 96}},
		{1, 64, 9, 9, 64, 3, kernels.Conv{Padding: pair(1), Groups: 16}},
		{1, 64, 16, 16, 80, 3, kernels.Conv{Padding: pair(2), Dilation: pair(2), Groups: 1}},
		{1, 64, 32, 32, 3, 1, kernels.Conv{Groups: 1}},
	}
	switch {
	case testkit.Race:
		shapes = shapes[2:3]
	case !testkit.IsLong():
		shapes = shapes[1:7]
	}
	library := os.Getenv("GODDP_ONEDNN")
	t.Setenv("GODDP_ONEDNN", "none")
	plain := New(&Options{Threads: 2})
	convolutions(t, plain, shapes[0], device.Float32, false) // looks for the library
	t.Setenv("GODDP_ONEDNN", library)
	for _, z := range shapes {
		for _, last := range []bool{false, true} {
			want := convolutions(t, plain, z, device.Float64, last)
			for _, threads := range []int{1, 5} {
				d := New(&Options{Threads: threads})
				var got [4][3][]float64
				var wg sync.WaitGroup
				for i := range got {
					wg.Go(func() { got[i] = convolutions(t, d, z, device.Float32, last) })
				}
				wg.Wait()
				for i, name := range []string{"result", "gradient of the images", "gradient of the weight"} {
					for _, again := range got[1:] {
						if !slices.Equal(again[i], got[0][i]) {
							t.Errorf("%v, channels last %v, %d threads: the %s has other bits each time", z, last, threads, name)
						}
					}
					var worst, most float64
					for j, v := range want[i] {
						worst, most = max(worst, math.Abs(v-got[0][i][j])), max(most, math.Abs(v))
					}
					if limit := 4e-6 * most; !(worst <= limit) {
						t.Errorf("%v, channels last %v, %d threads: an error of %g in the %s, want at most %g", z, last, threads, worst, name, limit)
					}
				}
			}
		}
	}
}
