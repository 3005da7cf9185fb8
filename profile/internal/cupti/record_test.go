//go:build cgo && linux

package cupti

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/goddp/goddp/internal/dl"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/fakegpu"
)

func TestMain(m *testing.M) { testkit.Main(m, nil) }

// fakeGPUs opens two devices on fake libraries. Each test opens CUPTI anew.
func fakeGPUs(t *testing.T, faults ...string) [2]*fakegpu.Device {
	t.Helper()
	fakegpu.Use(t, faults...)
	active.fns = nil
	t.Cleanup(func() { active.fns = nil })
	var devs [2]*fakegpu.Device
	for i := range devs {
		dev, err := fakegpu.Open(i)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { dev.Close() })
		devs[i] = dev
	}
	return devs
}

// copyAround copies n bytes to the device, on it, and back.
func copyAround(t *testing.T, dev *fakegpu.Device, n int) {
	t.Helper()
	a, err := dev.Alloc(n)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Free(a)
	b, err := dev.Alloc(n)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Free(b)
	s := dev.Compute()
	if err := errors.Join(dev.CopyIn(s, a, make([]byte, n)), dev.Copy(s, b, a), dev.CopyOut(t.Context(), s, make([]byte, n), b)); err != nil {
		t.Fatal(err)
	}
}

func TestEmulatedTakeReturnsWhatTheGPURan(t *testing.T) {
	devs := fakeGPUs(t)
	copyAround(t, devs[0], 1) // before the recording
	before := time.Now()
	r, err := Start(0)
	if err != nil {
		t.Fatal(err)
	}
	copyAround(t, devs[0], 1000)
	copyAround(t, devs[1], 2000) // another GPU
	got, err := r.Take()
	if err != nil {
		t.Fatal(err)
	}
	after := time.Now()
	var work, calls []Activity
	for _, a := range got {
		if a.Begin.Before(before.Add(-time.Millisecond)) || a.End.After(after.Add(time.Millisecond)) || a.End.Before(a.Begin) {
			t.Errorf("%s ran from %v to %v, want within %v and %v", a.Name, a.Begin, a.End, before, after)
		}
		if a.Kind == Call {
			calls = append(calls, a)
		} else {
			work = append(work, a)
		}
	}
	wantWork := []string{"copy HtoD", "copy DtoD", "copy DtoH"}
	wantCalls := []string{"cuMemcpyHtoDAsync_v2", "cuMemcpyDtoDAsync_v2", "cuMemcpyDtoHAsync_v2"}
	if len(work) != 3 || len(calls) != 6 {
		t.Fatalf("%d pieces of work and %d calls, want 3 of one GPU and 6 of the process: %+v", len(work), len(calls), got)
	}
	for i, a := range work {
		if a.Name != wantWork[i] || a.Kind != Memcpy || a.Bytes != 1000 || a.Stream != work[0].Stream || a.Graph != 0 {
			t.Errorf("work %d is %+v, want %s of 1000 bytes", i, a, wantWork[i])
		}
		if c := calls[i]; c.Name != wantCalls[i] || c.Correlation != a.Correlation || c.Thread == 0 || c.Begin.After(a.Begin) {
			t.Errorf("call %d is %+v, want the %s that enqueued %+v", i, c, wantCalls[i], a)
		}
	}
	copyAround(t, devs[0], 3000)
	if got, err := r.Stop(); err != nil || len(got) != 6 || got[len(got)-1].Bytes != 3000 && got[len(got)-2].Bytes != 3000 {
		t.Errorf("Stop returned %+v, %v; want the 6 activities since Take", got, err)
	}
	copyAround(t, devs[0], 4000) // after the recording
	again, err := Start(0)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := again.Stop(); err != nil || len(got) != 0 {
		t.Errorf("a recording of nothing has %+v, %v", got, err)
	}
}

// Buffers are completed when they are full, and each record is in one of them.
func TestEmulatedTakeReadsAllBuffers(t *testing.T) {
	devs := fakeGPUs(t)
	r, err := Start(0)
	if err != nil {
		t.Fatal(err)
	}
	const each = 10_000 // of 128 bytes: more than a buffer
	buf, err := devs[0].Alloc(8)
	if err != nil {
		t.Fatal(err)
	}
	defer devs[0].Free(buf)
	for range each {
		if err := devs[0].CopyIn(devs[0].Compute(), buf, []byte("12345678")); err != nil {
			t.Fatal(err)
		}
	}
	if err := devs[0].Compute().Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	got, err := r.Stop()
	if err != nil || len(got) != 2*each {
		t.Errorf("%d activities, %v; want %d", len(got), err, 2*each)
	}
}

// A recording whose end CUPTI cannot flush returns the records that it has, and leaves none to the next one.
func TestEmulatedStopThatCannotFlush(t *testing.T) {
	devs := fakeGPUs(t)
	r, err := Start(0)
	if err != nil {
		t.Fatal(err)
	}
	for range 5_000 { // more than a buffer
		copyAround(t, devs[0], 1)
	}
	release, err := fakegpu.Control("cupti_flush 1")
	if err != nil {
		t.Fatal(err)
	}
	got, err := r.Stop()
	if err == nil || !strings.Contains(err.Error(), "cuptiActivityFlushAll") || len(got) == 0 {
		t.Errorf("%d activities, %v; want those of the first buffer, and the error", len(got), err)
	}
	release()
	next, err := Start(0)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := next.Stop(); err != nil || len(got) > 0 {
		t.Errorf("the next recording has %d activities, %v, want none", len(got), err)
	}
}

func TestEmulatedStartFails(t *testing.T) {
	for want, faults := range map[string][]string{
		"MULTIPLE_SUBSCRIBERS":                {"cupti 39"},
		"has version 17, want 18 (CUDA 11.8)": {"cupti_version 17"},
	} {
		t.Run(faults[0], func(t *testing.T) {
			fakeGPUs(t, faults...)
			if _, err := Start(0); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			}
		})
	}
	active.fns = nil
	t.Setenv("GODDP_LIBCUPTI", "/nonexistent/libcupti.so")
	var missing *dl.NotFoundError
	if _, err := Start(0); !errors.As(err, &missing) {
		t.Errorf("without the library: %v", err)
	}
}
