//go:build cgo && linux

package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
	"github.com/goddp/goddp/internal/testkit/devicetest"
	"github.com/goddp/goddp/internal/testkit/fakegpu"
)

// flashCase is an attention on packed queries, keys and values.
type flashCase struct {
	dt             device.DType
	b, h, hk, n, d int
	causal         bool
}

// flashed holds the results of an attention.
type flashed struct {
	a       kernels.Attend
	o, g    kernels.Heads
	lse     device.Tensor
	to      kernels.AttentionGrads
	results []device.Tensor // all memory that is written
}

func (c flashCase) make(t *testing.T, d *gpuDevice) flashed {
	parts := func(x device.Tensor) (q, k, v kernels.Heads) {
		return kernels.RowsFirst(x, 0, c.h), kernels.RowsFirst(x, c.h, c.hk), kernels.RowsFirst(x, c.h+c.hk, c.hk)
	}
	packed := device.Shape{c.b, c.n, c.h + 2*c.hk, c.d}
	qkv, dqkv := tensor(t, d, c.dt, packed...), tensor(t, d, c.dt, packed...)
	o, g := tensor(t, d, c.dt, c.b, c.n, c.h, c.d), tensor(t, d, c.dt, c.b, c.n, c.h, c.d)
	f := flashed{
		a: kernels.Attend{Causal: c.causal, Scale: 1 / math.Sqrt(float64(c.d))}, o: kernels.RowsFirst(o, 0, c.h), g: kernels.RowsFirst(g, 0, c.h),
		lse: tensor(t, d, device.Float32, c.b, c.h, c.n), to: kernels.AttentionGrads{AccQ: device.Store, AccK: device.Store, AccV: device.Store},
	}
	f.a.Q, f.a.K, f.a.V = parts(qkv)
	f.to.Q, f.to.K, f.to.V = parts(dqkv)
	f.results = []device.Tensor{o, f.lse, dqkv}
	ok(t, d.kernels.Uniform(d.compute, qkv, -1, 1, 1, 0))
	ok(t, d.kernels.Uniform(d.compute, g, -1, 1, 2, 0))
	return f
}

// compute runs both passes and returns the results.
func (f flashed) compute(t *testing.T, d *gpuDevice) [][]float32 {
	ok(t, f.run(d))
	return f.read(t, d)
}

// replay is like compute, with a graph that captures both passes.
func (f flashed) replay(t *testing.T, d *gpuDevice) [][]float32 {
	for _, r := range f.results {
		ok(t, d.kernels.Fill(d.compute, r, 5))
	}
	g, err := d.Capture(t.Context(), nil, func() error { return f.run(d) })
	ok(t, err)
	ok(t, g.Launch())
	out := f.read(t, d)
	ok(t, g.Close())
	return out
}

func (f flashed) run(d *gpuDevice) error {
	k, s := d.kernels, d.compute
	return errors.Join(k.PrepareAttention(s, f.o, f.a), k.Attention(s, f.o, f.lse, f.a), k.AttentionGrad(s, f.to, f.g, f.o, f.lse, f.a))
}

// read returns the results as float32.
func (f flashed) read(t *testing.T, d *gpuDevice) (out [][]float32) {
	k, s := d.kernels, d.compute
	for _, r := range f.results {
		wide := tensor(t, d, device.Float32, r.Shape...)
		ok(t, k.Copy(s, wide, r))
		out = append(out, download(t, d, wide))
	}
	return out
}

// near fails the test if results differ by more than roundings of 16-bit types.
func near(t *testing.T, what string, got, want [][]float32) {
	t.Helper()
	for i, name := range []string{"the result", "lse", "the gradients"} {
		for j, w := range want[i] {
			if diff := math.Abs(float64(got[i][j] - w)); !(diff <= 0.02*(1+math.Abs(float64(w)))) {
				t.Fatalf("%s: element %d of %s is %v, want %v", what, j, name, got[i][j], w)
			}
		}
	}
}

// flashPasses are the passes that cuDNN computed.
func flashPasses(d *gpuDevice) int { return d.kernels.flash.passes }

// withoutCudnn opens a device that has no cuDNN.
func withoutCudnn(t *testing.T) *gpuDevice {
	d := gpu(t, nil)
	d.kernels.triedCudnn = true
	return d
}

// cuDNN computes prepared 16-bit attention, with the same results as goddp's kernels.
func checkFlash(t *testing.T, d *gpuDevice, cases ...flashCase) {
	plain := withoutCudnn(t)
	for _, c := range cases {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			want := c.make(t, plain).compute(t, plain)
			before := flashPasses(d)
			got := c.make(t, d).compute(t, d)
			if n := flashPasses(d) - before; n != 2 {
				t.Errorf("cuDNN computed %d passes, want 2", n)
			}
			near(t, "cuDNN", got, want)
			f := c.make(t, d)
			f.compute(t, d)
			again := f.replay(t, d)
			near(t, "a captured attention", again, want)
			for i := range got {
				if !d.kernels.flash.anyOrder && !slices.Equal(again[i], got[i]) {
					t.Errorf("result %d of a captured attention differs", i)
				}
			}
		})
	}
	if n := flashPasses(plain); n != 0 {
		t.Errorf("cuDNN computed %d passes without cuDNN", n)
	}
}

func TestFlash(t *testing.T) {
	d := gpu(t, nil)
	if _, err := openCudnn(d); err != nil {
		t.Skip(err)
	}
	cases := []flashCase{
		{device.BFloat16, 2, 3, 3, 256, 64, true}, {device.Float16, 2, 3, 3, 256, 64, false},
		{device.BFloat16, 3, 4, 2, 128, 128, true}, {device.BFloat16, 1, 1, 1, 1024, 32, true},
	}
	checkFlash(t, d, cases...)
	checkFlash(t, gpu(t, &Options{Nondeterministic: true}), cases...)
}

func TestEmulatedFlash(t *testing.T) {
	fakegpu.Use(t)
	d := gpu(t, nil)
	cases := []flashCase{{device.BFloat16, 2, 2, 2, 20, 16, true}, {device.Float16, 1, 4, 2, 17, 8, false}}
	checkFlash(t, d, cases...)
	checkFlash(t, gpu(t, &Options{Nondeterministic: true}), cases...)
}

// A backward pass that would need too much scratch memory splits the batch, or the heads of a batch.
func TestEmulatedFlashInParts(t *testing.T) {
	fakegpu.Use(t)
	const n, size = 16, 8
	perHead := 2 * n * n // of q
	for _, e := range []struct {
		c                 flashCase
		maxWork           int
		batches, keyHeads int
	}{
		{flashCase{device.BFloat16, 6, 1, 1, n, size, true}, 4 * perHead, 3, 1}, // 6 is no multiple of 4
		{flashCase{device.BFloat16, 2, 6, 6, n, size, true}, 4 * perHead, 1, 3},
		{flashCase{device.BFloat16, 2, 12, 6, n, size, true}, 8*perHead + 8*4*n*size, 1, 3},
		{flashCase{device.BFloat16, 2, 12, 6, n, size, true}, 1, 1, 1},
	} {
		d := gpu(t, nil)
		d.kernels.flash.maxWork = e.maxWork
		f := e.c.make(t, d)
		got := f.compute(t, d)
		if w := d.kernels.flash.way(f.o, f.a); w == nil || w.batches != e.batches || w.keyHeads != e.keyHeads {
			t.Fatalf("%+v: the plans are %+v, want parts of %d batches and %d heads of keys", e.c, w, e.batches, e.keyHeads)
		}
		plain := withoutCudnn(t)
		near(t, "in parts", got, e.c.make(t, plain).compute(t, plain))
	}
}

// goddp's kernels compute what cuDNN does not, and the log says why.
func TestEmulatedCudnnFallsBack(t *testing.T) {
	attention, images := flashCase{device.BFloat16, 1, 2, 2, 16, 8, true}, imageCase{device.BFloat16, 2, 4, 5, 6, 3, 2, 1, true}
	results := func(d *gpuDevice) (attended, convolved [][]float32) {
		attention.make(t, d).compute(t, d)
		v := images.make(t, d)
		ok(t, errors.Join(v.run(d), v.run(d)))
		return attention.make(t, d).compute(t, d), v.results(t, d)
	}
	for _, e := range []struct {
		name, fault string
		lines       int // in the log
		why         string
	}{
		{"no library", "", 1, "was not found"},
		{"not supported", "cudnn_refuse", 4, "CUDNN_STATUS_NOT_SUPPORTED (3000): a test wants no graph to be supported"},
		{"wrong numbers", "cudnn_wrong", 1, "cuDNN and goddp computed the result with a root mean square difference of "},
	} {
		t.Run(e.name, func(t *testing.T) {
			fakegpu.Use(t, e.fault)
			if e.fault == "" {
				t.Setenv("GODDP_LIBCUDNN", "/nonexistent/libcudnn.so.9")
			}
			var log bytes.Buffer
			d, plain := gpu(t, &Options{Log: slog.New(slog.NewTextHandler(&log, nil))}), withoutCudnn(t)
			attended, convolved := results(d)
			wantAttended, wantConvolved := results(plain)
			near(t, "own kernels", attended, wantAttended)
			isWrong := e.name == "wrong numbers" // cuDNN's convolutions are not checked
			if !isWrong {
				similar(t, convolved, wantConvolved, 1e-6)
			}
			if n, m := flashPasses(d), d.kernels.convs.passes; n != 0 || m != 0 && !isWrong {
				t.Errorf("cuDNN computed %d passes of attention and %d of convolutions", n, m)
			}
			if n := strings.Count(log.String(), "cuda: not using cuDNN"); n != e.lines || !strings.Contains(log.String(), e.why) {
				t.Errorf("the log has %d lines about it, want %d with %q:\n%s", n, e.lines, e.why, &log)
			}
		})
	}
}

// cuDNN is not used to accumulate gradients, for only some of the gradients, for masks, or for unprepared
// shapes.
func TestEmulatedFlashServesTrainingOnly(t *testing.T) {
	fakegpu.Use(t)
	d := gpu(t, nil)
	k, s := d.kernels, d.compute
	c := flashCase{device.BFloat16, 1, 2, 2, 16, 8, true}
	f := c.make(t, d)
	passes := func(what string, want int, run func() error) {
		t.Helper()
		before := flashPasses(d)
		ok(t, run())
		if n := flashPasses(d) - before; n != want {
			t.Errorf("%s: cuDNN computed %d passes, want %d", what, n, want)
		}
	}
	passes("not prepared", 0, func() error { return k.Attention(s, f.o, f.lse, f.a) })
	ok(t, k.PrepareAttention(s, f.o, f.a))
	passes("prepared", 1, func() error { return k.Attention(s, f.o, f.lse, f.a) })
	grad := func(change func(to *kernels.AttentionGrads)) func() error {
		to := f.to
		change(&to)
		return func() error { return k.AttentionGrad(s, to, f.g, f.o, f.lse, f.a) }
	}
	passes("stored", 1, grad(func(to *kernels.AttentionGrads) {}))
	passes("added", 0, grad(func(to *kernels.AttentionGrads) { to.AccK.Beta = 1 }))
	passes("scaled", 0, grad(func(to *kernels.AttentionGrads) { to.AccV.Alpha = 0.5 }))
	passes("without that of q", 0, grad(func(to *kernels.AttentionGrads) { to.Q = kernels.Heads{} }))
	masked := f.a
	masked.Mask = tensor(t, d, device.Uint8, c.n, c.n)
	ok(t, k.Fill(s, masked.Mask, 1))
	ok(t, k.PrepareAttention(s, f.o, masked))
	passes("masked", 0, func() error { return k.Attention(s, f.o, f.lse, masked) })
	single := flashCase{device.Float32, 1, 2, 2, 16, 8, true}.make(t, d)
	ok(t, k.PrepareAttention(s, single.o, single.a))
	passes("float32", 0, func() error { return k.Attention(s, single.o, single.lse, single.a) })
}

// goddp's kernels pass the conformance suite for attention even if cuDNN is installed.
func TestOwnAttention(t *testing.T) {
	d := withoutCudnn(t)
	for _, c := range devicetest.Cases(device.Float16, device.BFloat16) {
		name, dt, _ := strings.Cut(c.Name, "/")
		if strings.HasSuffix(name, "Attention") && strings.HasSuffix(dt, "float16") {
			if err := c.Check(t.Context(), d); err != nil {
				t.Errorf("%s: %v", c.Name, err)
			}
		}
	}
}

// A check that the GPU does not finish in time is made again at the next call. Its plans stay until Close,
// because the GPU may still run them.
func TestEmulatedFlashIsCheckedAgain(t *testing.T) {
	fakegpu.Use(t)
	d := gpu(t, nil)
	f := flashCase{device.BFloat16, 1, 2, 2, 16, 8, true}.make(t, d)
	flash := &d.kernels.flash
	for i, wait := range []time.Duration{0, 0, flashWait} {
		flash.maxWait = wait
		ok(t, d.kernels.PrepareAttention(d.compute, f.o, f.a))
		if serves := flash.way(f.o, f.a) != nil; serves != (wait > 0) || len(flash.tried) != i+1 {
			t.Errorf("call %d, which may wait %v: cuDNN serves the shape: %v; %d plans of checks are kept", i, wait, serves, len(flash.tried))
		}
	}
}
