package capture_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/internal/capture"
	"github.com/goddp/goddp/internal/kernels"
)

// capturer is a device whose graphs count their launches.
type capturer struct {
	device.Device
	capture                  bool
	launches, copies, closed int
	failure                  error // of the next Launch
}

func (d *capturer) Capture(_ context.Context, _ kernels.Graph, f func() error) (kernels.Graph, error) {
	d.capture = true
	defer func() { d.capture = false }()
	return graph{d}, f()
}

func (d *capturer) Capturing() bool { return d.capture }

func (d *capturer) AllocOutside(size int) (device.Buffer, error) { return d.Alloc(size) }

func (d *capturer) CopyIn(s device.Stream, dst device.Buffer, src []byte) error {
	d.copies++
	return d.Device.CopyIn(s, dst, src)
}

type graph struct{ d *capturer }

func (g graph) Launch() error {
	g.d.launches++
	return g.d.failure
}

func (g graph) Revoke() error { return nil }

func (g graph) Close() error {
	g.d.closed++
	return nil
}

func newCapturer(t *testing.T) *capturer {
	dev := cpu.New(&cpu.Options{Threads: 1})
	t.Cleanup(func() { dev.Close() })
	return &capturer{Device: dev}
}

// A replay calls what was added, in order around the launch, with the words of that replay.
func TestReplay(t *testing.T) {
	dev := newCapturer(t)
	var calls []string
	value, fits, beforeErr := int64(7), true, error(nil)
	var words, same device.Tensor
	r, err := capture.Capture(t.Context(), dev, nil, func() error {
		r := capture.Of(dev)
		fill := func(bits []int64) { bits[0], bits[1] = value, -value }
		words = r.Words("key", device.Int64, 2, fill)
		same = r.Words("key", device.Int64, 2, fill)
		r.Words("long", device.Int64, 5000, func([]int64) {})
		r.Require(func() bool { return fits })
		r.Before(func() error {
			calls = append(calls, "before")
			return beforeErr
		})
		r.After(func(err error) error {
			calls = append(calls, "after")
			return err
		})
		r.After(func(err error) error {
			calls = append(calls, "last")
			return nil
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if capture.Of(dev) != nil {
		t.Error("there is a capture after Capture")
	}
	if words.Buf.Addr() != same.Buf.Addr() {
		t.Error("one key has two places")
	}
	for range 3 {
		if err := r.Replay(); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"before", "after", "last"}; !slices.Equal(calls[:3], want) || dev.launches != 3 {
		t.Errorf("3 replays called %v and launched %d times, want %v each", calls, dev.launches, want)
	}
	if dev.copies != 2 {
		t.Errorf("%d copies of words that did not change, want one for each of 2 blocks", dev.copies)
	}
	value = 9
	if err := r.Replay(); err != nil || !slices.Equal(device.Elements[int64](words), []int64{9, -9}) || dev.copies != 3 {
		t.Errorf("the words are %v after %d copies, %v", device.Elements[int64](words), dev.copies, err)
	}
	if fits = false; r.Fits() {
		t.Error("the capture fits although its guard does not hold")
	}
	calls, beforeErr = nil, errors.New("no")
	var notLaunched *capture.NotLaunchedError
	if err := r.Replay(); !errors.As(err, &notLaunched) || !errors.Is(err, beforeErr) || len(calls) != 3 || dev.launches != 4 {
		t.Errorf("a refused replay gave %v, called %v, and launched: %v", err, calls, dev.launches != 4)
	}
	beforeErr, dev.failure = nil, errors.New("lost")
	if err := r.Replay(); err != dev.failure {
		t.Errorf("a replay whose launch failed gave %v, want %v", err, dev.failure)
	}
	dev.failure = nil
	ended := errors.New("ended")
	if r.Revoke(ended); !errors.Is(r.Replay(), ended) || dev.launches != 5 {
		t.Errorf("a replay after Revoke gave %v, and launched: %v", r.Replay(), dev.launches != 5)
	}
	if err := r.Close(); err != nil || dev.closed != 1 {
		t.Errorf("Close closed %d graphs: %v", dev.closed, err)
	}
	if used := dev.Memory().InUse; used != 0 {
		t.Errorf("%d bytes in use after Close", used)
	}
}

// If a step cannot be captured, Capture returns the reason, even if the step itself ignores it, and frees what the
// step added.
func TestCaptureFails(t *testing.T) {
	dev := newCapturer(t)
	var notYet *capture.NotYetError
	var refused *capture.RefusedError
	odd := errors.New("odd")
	for _, c := range []struct {
		step func(*capture.Step) error
		is   func(error) bool
	}{
		{func(r *capture.Step) error { r.NotYet("%d", 1); return nil }, func(err error) bool { return errors.As(err, &notYet) }},
		{func(r *capture.Step) error { return r.Refuse("%d", 1) }, func(err error) bool { return errors.As(err, &refused) }},
		{func(r *capture.Step) error { return odd }, func(err error) bool { return err == odd }},
	} {
		closed := 0
		r, err := capture.Capture(t.Context(), dev, nil, func() error {
			capture.Of(dev).Words("key", device.Int64, 1, nil)
			capture.Of(dev).AtClose(func() { closed++ })
			return c.step(capture.Of(dev))
		})
		if r != nil || !c.is(err) {
			t.Errorf("Capture gave %v, %v", r, err)
		}
		if closed != 1 {
			t.Errorf("Capture, which gave %v, called what AtClose added %d times, want once", err, closed)
		}
	}
	if used := dev.Memory().InUse; used != 0 {
		t.Errorf("%d bytes in use", used)
	}
}
