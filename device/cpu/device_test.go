package cpu

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goddp/goddp/device"
)

// signal is an event that belongs to no device.
type signal chan struct{}

func (s signal) Done() (bool, error) {
	select {
	case <-s:
		return true, nil
	default:
		return false, nil
	}
}

func (s signal) Sync(ctx context.Context) error {
	select {
	case <-s:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s signal) Time() time.Time { return time.Time{} }

// A stream waits for another device's event before it runs later work.
func TestEventsOfOtherDevices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New(&Options{BLAS: Gonum})
		s, e := d.Compute(), make(signal)
		const later = time.Minute
		start := time.Now()
		time.AfterFunc(later, func() { close(e) })
		if err := s.WaitFor(e); err != nil || time.Since(start) != later {
			t.Errorf("WaitFor returned %v after %v, want nil after %v", err, time.Since(start), later)
		}
		if err := s.WaitFor(s.Record()); err != nil {
			t.Error(err)
		}
	})
}

// Recording an event allocates only the event.
func TestRecordAllocs(t *testing.T) {
	s := open(t).Compute()
	var e device.Event
	if n := testing.AllocsPerRun(100, func() { e = s.Record() }); n > 1 {
		t.Errorf("Record allocates %v times", n)
	}
	if done, err := e.Done(); !done || err != nil {
		t.Errorf("Done: %v, %v", done, err)
	}
}

func TestMemoryLimit(t *testing.T) {
	d := New(&Options{MemoryLimit: 1 << 20})
	b, err := d.Alloc(600 << 10)
	if err != nil {
		t.Fatal(err)
	}
	_, err = d.Alloc(600 << 10)
	var oom *device.OutOfMemoryError
	if !errors.As(err, &oom) || oom.InUse != 608<<10 || oom.Free != 416<<10 {
		t.Errorf("error %v, want one with 608 KiB in use and 416 KiB free", err)
	}
	d.Free(b)
	if _, err := d.Alloc(900 << 10); err != nil {
		t.Errorf("after Free: %v", err)
	}
}

// An allocation that is larger than any host's memory returns an OutOfMemoryError.
func TestHostMemory(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the host does not tell what it has")
	}
	_, err := New(nil).Alloc(1 << 50)
	var oom *device.OutOfMemoryError
	if !errors.As(err, &oom) || oom.Asked != 1<<50 || oom.Free <= 0 {
		t.Errorf("error %v, want that there is less than a pebibyte", err)
	}
}

// Without OpenBLAS a device uses gonum and logs a warning.
func TestWithoutOpenBLAS(t *testing.T) {
	t.Setenv("GODDP_OPENBLAS", "/nonexistent/libopenblas.so")
	var log bytes.Buffer
	New(&Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "level=WARN") {
		t.Errorf("logged %q, want one warning", got)
	}
	defer func() {
		if err, ok := recover().(error); !ok {
			t.Errorf("asked for OpenBLAS, New panicked with %v, want an error", err)
		}
	}()
	New(&Options{BLAS: OpenBLAS})
}
