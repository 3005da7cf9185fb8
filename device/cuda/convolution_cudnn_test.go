//go:build cgo && linux

package cuda

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
	"github.com/goddp/goddp/internal/testkit/devicetest"
	"github.com/goddp/goddp/internal/testkit/fakegpu"
)

// imageCase is a convolution of n images.
type imageCase struct {
	dt             device.DType
	n, c, size, o  int
	kernel, stride int
	groups         int
	channelsLast   bool
}

// convolved holds the operands and results of a convolution and of its gradients.
type convolved struct {
	x, w, b, g, y, dx, dw device.Tensor
	p                     kernels.Conv
}

func (c imageCase) make(t testing.TB, d *gpuDevice) convolved {
	pad := c.kernel / 2
	p := kernels.Conv{Stride: [2]int{c.stride, c.stride}, Padding: [2]int{pad, pad}, Dilation: [2]int{1, 1}, Groups: c.groups, ChannelsLast: c.channelsLast}
	shape := func(n, c, h, w int) device.Shape {
		if p.ChannelsLast {
			return device.Shape{n, h, w, c}
		}
		return device.Shape{n, c, h, w}
	}
	x, w := shape(c.n, c.c, c.size, c.size), shape(c.o, c.c/c.groups, c.kernel, c.kernel)
	out := p.Shape(x, w)
	v := convolved{tensor(t, d, c.dt, x...), tensor(t, d, c.dt, w...), tensor(t, d, c.dt, c.o), tensor(t, d, c.dt, out...), tensor(t, d, c.dt, out...),
		tensor(t, d, c.dt, x...), tensor(t, d, c.dt, w...), p}
	bound := 1 / math.Sqrt(float64(w[1:].Len()))
	for i, r := range []struct {
		t     device.Tensor
		bound float64
	}{{v.x, 1}, {v.w, bound}, {v.b, 1}, {v.g, 1}} {
		ok(t, d.kernels.Uniform(d.compute, r.t, -r.bound, r.bound, uint64(i), 0))
	}
	return v
}

// run enqueues the three passes. Gradients are accumulated into known numbers.
func (v convolved) run(d *gpuDevice) error {
	k, s, half := d.kernels, d.compute, device.Accum{Alpha: 0.5, Beta: 1}
	return errors.Join(
		k.PrepareConv2d(s, v.y, v.x, v.w, v.p), k.Conv2d(s, v.y, v.x, v.w, v.b, v.p),
		k.Conv2dGradInput(s, v.dx, device.Store, v.g, v.w, v.p), k.Conv2dGradInput(s, v.dx, addTo, v.g, v.w, v.p),
		k.Conv2dGradWeight(s, v.dw, device.Store, v.g, v.x, v.p), k.Conv2dGradWeight(s, v.dw, half, v.g, v.x, v.p))
}

// results returns the result and the gradients as float32.
func (v convolved) results(t testing.TB, d *gpuDevice) (out [][]float32) {
	for _, r := range []device.Tensor{v.y, v.dx, v.dw} {
		wide := tensor(t, d, device.Float32, r.Shape...)
		ok(t, d.kernels.Copy(d.compute, wide, r))
		out = append(out, download(t, d, wide))
	}
	return out
}

// similar fails the test unless the root mean square of the differences is at most part of the results'.
func similar(t *testing.T, got, want [][]float32, part float64) {
	t.Helper()
	for i, name := range []string{"the result", "the gradient of the images", "the gradient of the weight"} {
		var size, off float64
		for j, w := range want[i] {
			size += float64(w) * float64(w)
			off += float64(got[i][j]-w) * float64(got[i][j]-w)
		}
		if !(math.Sqrt(off) <= part*math.Sqrt(size)) {
			t.Errorf("%s is off by %.2g of its size, want at most %.2g", name, math.Sqrt(off/size), part)
		}
	}
}

// checkConvolutions checks that cuDNN computes convolutions, with the same results as goddp's kernels, and
// bit-identically each time and in a captured step.
func checkConvolutions(t *testing.T, d *gpuDevice, cases ...imageCase) {
	plain := withoutCudnn(t)
	for _, c := range cases {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			v, expected := c.make(t, d), c.make(t, plain)
			ok(t, expected.run(plain))
			ok(t, v.run(d)) // which also runs cuDNN's kernels to choose them
			before := d.kernels.convs.passes
			ok(t, v.run(d))
			if n := d.kernels.convs.passes - before; n != 5 {
				t.Errorf("cuDNN computed %d passes, want 5", n)
			}
			got := v.results(t, d)
			part := 1. / 100
			if c.dt == device.Float32 {
				part = 1e-5
			}
			similar(t, got, expected.results(t, plain), part)
			for _, r := range []device.Tensor{v.y, v.dx, v.dw} {
				ok(t, d.kernels.Fill(d.compute, r, 5))
			}
			g, err := d.Capture(t.Context(), nil, func() error { return v.run(d) })
			ok(t, err)
			ok(t, g.Launch())
			again := v.results(t, d)
			ok(t, g.Close())
			for i := range got {
				if !slices.Equal(again[i], got[i]) {
					t.Errorf("result %d of a captured convolution differs", i)
				}
			}
		})
	}
	if n := plain.kernels.convs.passes; n != 0 {
		t.Errorf("cuDNN computed %d passes without cuDNN", n)
	}
}

func TestConvolutionsByCudnn(t *testing.T) {
	d := gpu(t, &Options{TuneConvolutions: true, Log: quiet()})
	if d.kernels.cudnn() == nil {
		t.Skip("there is no cuDNN")
	}
	checkConvolutions(t, d,
		imageCase{device.BFloat16, 4, 64, 28, 128, 3, 2, 1, true}, imageCase{device.BFloat16, 4, 64, 28, 64, 1, 1, 1, true},
		imageCase{device.Float16, 4, 3, 56, 64, 7, 2, 1, true}, imageCase{device.BFloat16, 2, 64, 14, 64, 3, 1, 32, true},
		imageCase{device.BFloat16, 4, 64, 28, 128, 3, 2, 1, false}, imageCase{device.Float32, 4, 32, 14, 48, 3, 1, 1, true},
		imageCase{device.Float32, 4, 32, 14, 48, 3, 2, 2, false},
	)
}

func TestEmulatedConvolutionsByCudnn(t *testing.T) {
	fakegpu.Use(t)
	for _, tune := range []bool{false, true} {
		checkConvolutions(t, gpu(t, &Options{TuneConvolutions: tune, Log: quiet()}),
			imageCase{device.BFloat16, 2, 4, 5, 6, 3, 2, 2, true}, imageCase{device.BFloat16, 2, 3, 9, 6, 7, 2, 1, true}, imageCase{device.BFloat16, 2, 3, 6, 4, 3, 1, 1, true}, imageCase{device.Float32, 2, 3, 4, 5, 1, 1, 1, false})
	}
}

// If cuDNN does not compute the gradients of a convolution, PrepareConv2d allocates no memory for them.
func TestEmulatedPrepareConv2dTakesNoMemory(t *testing.T) {
	fakegpu.Use(t)
	for name, c := range map[string]struct {
		d  *gpuDevice
		dt device.DType
	}{"no library": {withoutCudnn(t), device.BFloat16}, "float64": {gpu(t, &Options{Log: quiet()}), device.Float64}} {
		v := imageCase{c.dt, 2, 4, 5, 6, 3, 2, 1, true}.make(t, c.d)
		before := c.d.Memory()
		ok(t, c.d.kernels.PrepareConv2d(c.d.compute, v.y, v.x, v.w, v.p))
		if after := c.d.Memory(); before.Peak != before.InUse || after.Peak != before.Peak {
			t.Errorf("%s: the memory was %+v, and then %+v", name, before, after)
		}
	}
}

// exhaust allocates all memory of a device. The function that it returns frees that memory.
func exhaust(d *gpuDevice) (release func()) {
	var taken []device.Buffer
	d.limit = d.held.Load()
	for size := int(d.limit); size >= device.Align; size /= 2 {
		for b, err := d.Alloc(size); err == nil; b, err = d.Alloc(size) {
			taken = append(taken, b)
		}
	}
	return func() {
		d.limit = 0
		for _, b := range taken {
			d.Free(b)
		}
	}
}

// If memory is short, a plan is built later, when there is enough.
func TestEmulatedConvolutionsArePreparedWhenThereIsMemory(t *testing.T) {
	fakegpu.Use(t)
	for _, tune := range []bool{false, true} {
		d := gpu(t, &Options{TuneConvolutions: tune, Log: quiet()})
		v := imageCase{device.BFloat16, 2, 3, 9, 6, 7, 2, 1, true}.make(t, d) // its images are folded
		prepare := func(pass convPass) int {
			t.Helper()
			z := operands.Conv2d("Conv2d", v.y, v.x, v.w, device.Tensor{}, v.p)
			ok(t, d.kernels.convs.prepare(d.compute, pass, false, convOperands{v.x, v.w, v.y}, z))
			return len(d.kernels.convs.plans)
		}
		release := exhaust(d)
		if n := prepare(convForward); n != 0 {
			t.Errorf("%d plans without memory for folded images", n)
		}
		release()
		if n := prepare(convForward); n != 1 {
			t.Errorf("%d plans, want 1", n)
		}

		usual, err := d.compute.workspace()
		ok(t, err)
		d.compute.work = device.Buffer{}
		full, err := fakegpu.Control("memory 1")
		ok(t, err)
		if n := prepare(convGradInput); n != 1 {
			t.Errorf("%d plans without scratch memory, want 1", n)
		}
		full()
		d.compute.work = usual
		if n := prepare(convGradInput); n != 2 {
			t.Errorf("%d plans, want 2", n)
		}
	}
}

// goddp's kernels are used if there is too little scratch memory for cuDNN.
func TestEmulatedConvolutionsWithoutScratchMemory(t *testing.T) {
	fakegpu.Use(t)
	c := imageCase{device.BFloat16, 2, 4, 5, 6, 3, 2, 1, true}
	d, plain := gpu(t, &Options{Log: quiet()}), withoutCudnn(t)
	v, expected := c.make(t, d), c.make(t, plain)
	ok(t, v.run(d))
	ok(t, expected.run(plain))
	before := d.kernels.convs.passes
	for _, p := range d.kernels.convs.plans {
		p.c.workspace = 1 << 30
	}
	d.limit = d.held.Load() + 64<<20
	ok(t, v.run(d))
	if n := d.kernels.convs.passes - before; n != 0 {
		t.Errorf("cuDNN computed %d passes", n)
	}
	similar(t, v.results(t, d), expected.results(t, plain), 1e-6)
}

// goddp's kernels pass the conformance suite for convolutions even if cuDNN is installed.
func TestEmulatedOwnConvolutions(t *testing.T) {
	fakegpu.Use(t)
	d := withoutCudnn(t)
	for _, c := range devicetest.Cases() {
		if strings.HasPrefix(c.Name, "Conv") && strings.HasSuffix(c.Name, "float32") {
			if err := c.CheckQuickly(t.Context(), d); err != nil {
				t.Errorf("%s: %v", c.Name, err)
			}
		}
	}
}
