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

// recorder is a device whose graphs count their launches.
type recorder struct {
	device.Device
	recording                bool
	launches, copies, closed int
	failure                  error // of the next Launch
}

func (d *recorder) Record(_ context.Context, _ kernels.Graph, f func() error) (kernels.Graph, error) {
	d.recording = true
	defer func() { d.recording = false }()
	return graph{d}, f()
}

func (d *recorder) Recording() bool { return d.recording }

func (d *recorder) AllocOutside(size int) (device.Buffer, error) { return d.Alloc(size) }

func (d *recorder) CopyIn(s device.Stream, dst device.Buffer, src []byte) error {
	d.copies++
	return d.Device.CopyIn(s, dst, src)
}

type graph struct{ d *recorder }

func (g graph) Launch() error {
	g.d.launches++
	return g.d.failure
}

func (g graph) Revoke() error { return nil }

func (g graph) Close() error {
	g.d.closed++
	return nil
}

func newRecorder(t *testing.T) *recorder {
	dev := cpu.New(&cpu.Options{Threads: 1})
	t.Cleanup(func() { dev.Close() })
	return &recorder{Device: dev}
}

// A replay calls what was added, in order around the launch, with the words of that replay.
func TestReplay(t *testing.T) {
	dev := newRecorder(t)
	var calls []string
	value, fits, beforeErr := int64(7), true, error(nil)
	var words, same device.Tensor
	r, err := capture.Record(t.Context(), dev, nil, func() error {
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
		t.Error("there is a recording after Record")
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
		t.Error("the recording fits although its guard does not hold")
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

// Record returns why a step cannot be recorded, also if the step ignores that, and frees what
// the step added.
func TestRecordFails(t *testing.T) {
	dev := newRecorder(t)
	var notYet *capture.NotYetError
	var refused *capture.RefusedError
	odd := errors.New("odd")
	for _, c := range []struct {
		step func(*capture.Recording) error
		is   func(error) bool
	}{
		{func(r *capture.Recording) error { r.NotYet("%d", 1); return nil }, func(err error) bool { return errors.As(err, &notYet) }},
		{func(r *capture.Recording) error { return r.Refuse("%d", 1) }, func(err error) bool { return errors.As(err, &refused) }},
		{func(r *capture.Recording) error { return odd }, func(err error) bool { return err == odd }},
	} {
		closed := 0
		r, err := capture.Record(t.Context(), dev, nil, func() error {
			capture.Of(dev).Words("key", device.Int64, 1, nil)
			capture.Of(dev).AtClose(func() { closed++ })
			return c.step(capture.Of(dev))
		})
		if r != nil || !c.is(err) {
			t.Errorf("Record gave %v, %v", r, err)
		}
		if closed != 1 {
			t.Errorf("Record, which gave %v, called what AtClose added %d times, want once", err, closed)
		}
	}
	if used := dev.Memory().InUse; used != 0 {
		t.Errorf("%d bytes in use", used)
	}
}
