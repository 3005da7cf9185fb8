//go:build cgo && linux

package cuda

import (
	"slices"
	"strings"
	"testing"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// numbers returns n numbers from first on.
func numbers(first float32, n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = first + float32(i)
	}
	return v
}

// Each launch of a graph runs what was captured on two streams, in order, with the current content of
// its operands. Capture itself runs nothing.
func graphRunsWhatWasCaptured(t *testing.T, d *gpuDevice) {
	const n = 100
	x, y := upload(t, d, numbers(0, n), n), upload(t, d, make([]float32, n), n)
	side, err := d.NewStream(true)
	ok(t, err)
	var inner device.Tensor
	g, err := d.Capture(t.Context(), nil, func() error {
		inner = tensor(t, d, device.Float32, n)
		ok(t, d.Copy(d.Compute(), inner.Buf, x.Buf))
		ok(t, side.WaitFor(d.Compute().Mark()))
		ok(t, d.Copy(side, y.Buf, inner.Buf))
		return d.Compute().WaitFor(side.Mark())
	})
	ok(t, err)
	if got := download(t, d, y); !slices.Equal(got, make([]float32, n)) {
		t.Fatalf("Capture ran the copies: %v", got)
	}
	for i := range 5 {
		want := numbers(float32(1000*i), n)
		ok(t, d.Copy(d.Compute(), x.Buf, upload(t, d, want, n).Buf))
		ok(t, g.Launch())
		if got := download(t, d, y); !slices.Equal(got, want) {
			t.Fatalf("launch %d gave %v, want %v", i, got, want)
		}
	}
	d.Free(inner.Buf)
	ok(t, g.Close())
	ok(t, side.Close())
}

// A graph's memory is not used for anything else until the graph is closed, even if it was freed
// during capture. A graph captured "like" it shares the memory.
func graphOwnsItsMemory(t *testing.T, d *gpuDevice) {
	const size = 1 << 16
	cached, err := d.Alloc(size)
	ok(t, err)
	d.Free(cached)
	before := d.Memory()
	var kept, freed device.Buffer
	capture := func(like kernels.Graph) kernels.Graph {
		g, err := d.Capture(t.Context(), like, func() (err error) {
			freed, err = d.Alloc(size)
			ok(t, err)
			d.Free(freed)
			outside, err := d.AllocOutside(size)
			ok(t, err)
			if d.poolOf(outside) != nil {
				t.Error("AllocOutside returned memory of the graph")
			}
			d.Free(outside)
			kept, err = d.Alloc(2 * size)
			return err
		})
		ok(t, err)
		return g
	}
	g := capture(nil)
	if freed.Addr() != cached.Addr() {
		t.Errorf("the graph allocated at %#x, want the cached block at %#x", freed.Addr(), cached.Addr())
	}
	other, err := d.Alloc(size)
	ok(t, err)
	if other.Addr() == freed.Addr() {
		t.Error("memory of the graph was allocated again")
	}
	d.Free(other)
	was := kept
	d.Free(kept)
	like := capture(g)
	if kept.Addr() != was.Addr() {
		t.Errorf("a graph like the first one allocated at %#x, want %#x", kept.Addr(), was.Addr())
	}
	ok(t, g.Close())
	if used := d.Memory().InUse - before.InUse; used < 3*size {
		t.Errorf("%d bytes in use with one of two graphs open, want at least %d", used, 3*size)
	}
	ok(t, like.Close())
	if used := d.Memory().InUse - before.InUse; used < 2*size || used >= 3*size {
		t.Errorf("%d bytes in use after Close, want those of the buffer that is not freed, %d", used, 2*size)
	}
	d.Free(kept)
	if used := d.Memory().InUse - before.InUse; used != 0 {
		t.Errorf("%d bytes in use after Free, want 0", used)
	}
}

// Calls that cannot be repeated return an error, and the device keeps working.
func recordRefusesWaits(t *testing.T, d *gpuDevice) {
	calls := map[string]func(d *gpuDevice, x device.Tensor) error{
		"a wait for the GPU":               func(d *gpuDevice, x device.Tensor) error { return d.Compute().Sync(t.Context()) },
		"a copy from the program's memory": func(d *gpuDevice, x device.Tensor) error { return d.CopyIn(d.Compute(), x.Buf, make([]byte, 4)) },
		"a wait": func(d *gpuDevice, x device.Tensor) error {
			return d.CopyOut(t.Context(), d.Compute(), make([]byte, 4), x.Buf)
		},
	}
	x := upload(t, d, numbers(7, 1), 1)
	for want, call := range calls {
		_, err := d.Capture(t.Context(), nil, func() error {
			if err := call(d, x); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("the call gave %v, want an error with %q", err, want)
			}
			return nil // Capture knows
		})
		if err == nil || !strings.Contains(err.Error(), want+" ") {
			t.Errorf("Capture gave %v, want an error with %q", err, want)
		}
		if got := download(t, d, x); got[0] != 7 {
			t.Errorf("after Capture the number is %v, want 7", got[0])
		}
	}
	func() {
		defer func() {
			if recover() != "inside" {
				t.Error("Capture did not pass on the panic")
			}
		}()
		d.Capture(t.Context(), nil, func() error { panic("inside") })
	}()
	if got := download(t, d, x); got[0] != 7 {
		t.Errorf("after a panic in Capture the number is %v, want 7", got[0])
	}
	if all := d.pools.Load(); all != nil {
		t.Errorf("%d pools are left", len(*all))
	}
}

// Within Capture a stream may wait for an event that was captured before, and after Capture for one that
// was captured within.
func eventsAcrossRecord(t *testing.T, d *gpuDevice) {
	x, y := upload(t, d, numbers(1, 4), 4), upload(t, d, numbers(5, 4), 4)
	side, err := d.NewStream(false)
	ok(t, err)
	ok(t, d.Copy(side, y.Buf, x.Buf))
	outside := side.Mark()
	var inside device.Event
	g, err := d.Capture(t.Context(), nil, func() error {
		ok(t, d.Compute().WaitFor(outside))
		ok(t, d.Copy(d.Compute(), x.Buf, y.Buf))
		inside = d.Compute().Mark()
		return nil
	})
	ok(t, err)
	if done, err := inside.Done(); !done || err != nil {
		t.Errorf("the event is not reached after Capture: %v, %v", done, err)
	}
	ok(t, side.WaitFor(inside))
	ok(t, g.Launch())
	ok(t, d.Compute().Sync(t.Context()))
	ok(t, g.Close())
	for range 100 { // the CUevents of the capture serve again
		d.Compute().Record()
	}
	ok(t, d.Compute().Sync(t.Context()))
	ok(t, side.Close())
}
