package cpu

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
	"github.com/goddp/goddp/internal/testkit"
)

func host[T device.Element](v []T, shape ...int) device.Tensor {
	return device.HostTensor(v, device.Invalid, shape...)
}

func random(n int) []float32 {
	rnd := rand.New(rand.NewPCG(1, 2))
	v := make([]float32, n)
	for i := range v {
		v[i] = rnd.Float32() - 0.5
	}
	return v
}

// Results do not depend on the number of threads, to the bit. Products do not with gonum.
func TestThreads(t *testing.T) {
	const m, n = 700, 301
	both, labels := random(2*m*n), make([]int64, m)
	for i := range labels {
		labels[i] = int64(i % 3)
	}
	x, y := both[:m*n], both[m*n:]
	run := func(threads int) []float32 {
		d := New(&Options{Threads: threads, BLAS: Gonum})
		k, s := kernels.Of(d), d.Compute()
		out := make([]float32, 3*m*n+4*n+3+128*128)
		all, at := host(out), 0
		take := func(shape ...int) device.Tensor {
			n := device.Shape(shape).Len()
			at += n
			return all.Range(at-n, at).Reshape(shape...)
		}
		src := host(x, m, n)
		err := errors.Join(
			k.Sum(s, take(), device.Store, src),
			k.Sum(s, take(n), device.Store, src),
			k.MSE(s, take(), src, host(y, m, n)),
			k.CrossEntropy(s, take(), host(make([]float64, 2*m), 2, m), src, host(labels)),
			k.Normal(s, take(m, n), 0, 1, 3, 5),
			k.Unary(s, kernels.Tanh, take(m, n), src),
			k.Linear(s, take(128, 128), host(x[:128*512], 128, 512), host(y[:128*512], 128, 512), device.Tensor{}, kernels.NoActivation),
			k.ScatterAdd(s, take(1, 3, n), device.Store, src.Reshape(1, m, n), host(labels), -1),
		)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	want := run(1)
	for _, threads := range []int{2, 3, 7} {
		if !slices.Equal(run(threads), want) {
			t.Errorf("%d threads gave other bits than 1", threads)
		}
	}
}

func TestLabelOutOfRange(t *testing.T) {
	d := open(t)
	for _, label := range []int64{-1, 3} {
		func() {
			defer func() {
				want := device.IndexError{Op: "CrossEntropy", At: 1, Index: label, Limit: 3, Label: true}
				if got, ok := recover().(*device.IndexError); !ok || *got != want {
					t.Errorf("label %d: panic with %v, want %v", label, got, want)
				}
			}()
			kernels.Of(d).CrossEntropy(d.Compute(), host(make([]float32, 1)), host(make([]float64, 4), 2, 2),
				host(make([]float32, 6), 2, 3), host([]int64{0, label}))
		}()
	}
}

// The mean loss of no rows is NaN, and its gradient writes nothing.
func TestNoRows(t *testing.T) {
	d := open(t)
	k, s := kernels.Of(d), d.Compute()
	for _, classes := range []int{0, 3} {
		loss, none, labels := []float32{0}, host([]float32{}, 0, classes), host([]int64{}, 0)
		if err := k.CrossEntropy(s, host(loss, 1), host([]float64{}, 2, 0), none, labels); err != nil || loss[0] == loss[0] {
			t.Errorf("CrossEntropy of %v: %v, %v, want NaN", none, loss[0], err)
		}
		if err := k.CrossEntropyGrad(s, none, device.Store, host([]float32{1}), host([]float64{}, 2, 0), none, labels); err != nil {
			t.Error(err)
		}
	}
}

// Copy saturates numbers outside an integer type's range.
func TestConversionEdges(t *testing.T) {
	d := open(t)
	src := host([]float64{-1, 256, 1e30, -1e30, math.NaN()})
	got, want := make([]uint8, 5), []uint8{0, 255, 255, 0, 0}
	if err := d.Kernels().Copy(d.Compute(), host(got), src); err != nil || !bytes.Equal(got, want) {
		t.Errorf("as uint8: %v, %v, want %v", got, err, want)
	}
	ints, wantInts := make([]int64, 5), []int64{-1, 256, 1<<63 - 1, -1 << 63, 0}
	if err := d.Kernels().Copy(d.Compute(), host(ints), src); err != nil || !slices.Equal(ints, wantInts) {
		t.Errorf("as int64: %v, %v, want %v", ints, err, wantInts)
	}
}

// More ranks of one process can multiply concurrently than OpenBLAS has work areas.
func TestProductsFromManyGoroutines(t *testing.T) {
	testkit.Need(t, openBLASLibrary)
	const n, ranks = 96, 200
	x, y := random(n*n), random(n*n)
	product := func(d device.Device) []float32 {
		dst := make([]float32, n*n)
		if err := kernels.Of(d).MatMul(d.Compute(), host(dst, n, n), device.Store, host(x, n, n), false, host(y, n, n), true); err != nil {
			t.Error(err)
		}
		return dst
	}
	want := product(New(&Options{BLAS: OpenBLAS, Threads: 1}))
	var wg sync.WaitGroup
	for range ranks {
		wg.Go(func() {
			d := New(&Options{BLAS: OpenBLAS, Threads: 1})
			for range 5 {
				if !slices.Equal(product(d), want) {
					t.Error("a product at the same time as others differs")
				}
			}
		})
	}
	wg.Wait()
}
