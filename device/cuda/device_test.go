//go:build cgo && linux

package cuda

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// busy enqueues matrix products that take some tenths of a second.
func busy(t testing.TB, d *gpuDevice, s device.Stream) {
	const n = 4096
	x, y, z := tensor(t, d, device.Float32, n, n), tensor(t, d, device.Float32, n, n), tensor(t, d, device.Float32, n, n)
	ok(t, d.Kernels().Fill(s, x, 0.5))
	ok(t, d.Kernels().Fill(s, y, 0.25))
	for range 100 {
		ok(t, kernels.Of(d).MatMul(s, z, device.Store, x, false, y, false))
	}
}

// Waits end with their context, events report completion correctly, and streams run concurrently.
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
	ok(t, other.WaitFor(after))
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
	ok(t, d.Kernels().Fill(d.Compute(), held, 1)) // the device still works
	ok(t, d.Compute().Sync(t.Context()))

	limited := gpu(t, &Options{MemoryLimit: 64 << 20})
	for range 5 { // each allocation needs memory that the one before left in the cache
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

// Copies in both directions, on two streams, can be larger than the staging memory.
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
	if held := d.pinned.Stats(); held.InUse+held.Cached > 2*stagingSize {
		t.Errorf("staging took %+v", held)
	}
}

// One process drives two GPUs, each from a goroutine that moves between threads. Streams of one GPU
// wait for events of the other.
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
			x := tensor(t, d.(*gpuDevice), device.Float32, 1000)
			for round := range 200 {
				if err := d.Kernels().Fill(d.Compute(), x, float64(1000*i+round)); err != nil {
					t.Error(err)
				}
				runtime.Gosched()
				if got := download(t, d.(*gpuDevice), x); got[999] != float32(1000*i+round) {
					t.Errorf("%v: round %d gave %v", d, round, got[999])
				}
			}
		})
	}
	wg.Wait()
	first, second := devices[0].(*gpuDevice), devices[1].(*gpuDevice)
	busy(t, first, first.Compute())
	e := first.Compute().Record()
	ok(t, second.Compute().WaitFor(e))
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
