//go:build cgo && linux

package cuda

import (
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit/devicetest"
	"github.com/goddp/goddp/internal/testkit/fakegpu"
)

// bare opens a device without kernels on the fake libcuda. lines are faults for fakegpu.Control.
func bare(t testing.TB, lines ...string) *gpuDevice {
	t.Helper()
	release := fakegpu.Use(t, lines...)
	d, err := openBare(0, Options{Log: quiet()})
	ok(t, err)
	d.kernels = &kernelSet{d: d}
	t.Cleanup(func() {
		release()
		if err := d.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return d
}

// deviceTests run on a GPU, and on the emulated GPU.
var deviceTests = map[string]func(t *testing.T, d *gpuDevice){
	"events are recycled": eventsAreRecycled, "marks of an unchanged stream": marksOfAnUnchangedStream, "Enqueue": enqueue,
	"events outlive their stream": eventsOutliveTheirStream, "events across Record": eventsAcrossRecord,
	"a graph runs what was captured": graphRunsWhatWasCaptured, "a graph owns its memory": graphOwnsItsMemory,
	"Record refuses waits": recordRefusesWaits,
}

func TestEventsAndGraphs(t *testing.T) {
	for name, f := range deviceTests {
		t.Run(name, func(t *testing.T) { f(t, gpu(t, nil)) })
	}
}

func TestEmulatedEventsAndGraphs(t *testing.T) {
	for name, f := range deviceTests {
		t.Run(name, func(t *testing.T) { f(t, bare(t)) })
	}
}

// A stream uses a bounded number of CUevents although the test keeps all events. The events stay
// correct: they complete in order and have times.
func eventsAreRecycled(t *testing.T, d *gpuDevice) {
	var events []device.Event
	for range 20 {
		for range 100 {
			events = append(events, d.Compute().Record(), d.Compute().Mark())
		}
		ok(t, d.Compute().Sync(t.Context()))
	}
	if timed, marks := len(d.events.all), len(d.marks.all); timed > 500 || marks > 500 {
		t.Errorf("2000 events of each kind took %d CUevents with a time and %d without", timed, marks)
	}
	last := time.Time{}
	for i, e := range events {
		done, err := e.Done()
		at := e.Time()
		if !done || err != nil || i%2 == 1 && !at.IsZero() || i%2 == 0 && (at.IsZero() || at.Before(last.Add(-time.Millisecond))) {
			t.Fatalf("event %d is done: %v, %v, at %v, the one before at %v", i, done, err, at, last)
		}
		if i%2 == 0 {
			last = at
		}
		ok(t, d.Compute().WaitFor(e))
	}
}

// Two marks with nothing enqueued in between are the same event. Everything that may enqueue work
// makes the next mark a new event.
func marksOfAnUnchangedStream(t *testing.T, d *gpuDevice) {
	s := d.compute
	other, err := d.newStream(false)
	ok(t, err)
	mem, err := d.Alloc(8)
	ok(t, err)
	if s.Mark() != s.Mark() {
		t.Error("two marks with nothing between them are two events")
	}
	if s.Record() == s.Record() {
		t.Error("two events with a time are one")
	}
	for what, change := range map[string]func() error{
		"a copy":                func() error { return d.CopyIn(s, mem, make([]byte, 8)) },
		"a copy on the device":  func() error { return d.Copy(s, mem, mem) },
		"an event with a time":  func() error { s.Record(); return nil },
		"a wait":                func() error { return s.WaitFor(other.Mark()) },
		"somebody's own handle": func() error { s.Handle(); return nil },
	} {
		before := s.Mark()
		ok(t, change())
		if s.Mark() == before {
			t.Errorf("the mark behind %s is the one before it", what)
		}
		s.shared.Store(false)
	}
}

// Enqueue returns an event behind the work that a library enqueues. If the library's function
// fails, Enqueue returns no event and loses no CUevent.
func enqueue(t *testing.T, d *gpuDevice) {
	s := d.compute
	for _, timed := range []bool{false, true} {
		calls := 0
		e, err := s.Enqueue(timed, func(stream, event uintptr) error {
			calls++
			return d.mark(as(s.handle, event), as(s.handle, stream))
		})
		ok(t, err)
		if again := s.Mark(); calls != 1 || (again == e) == timed {
			t.Errorf("timed %v: recorded %d times, and the next mark is the same event: %v", timed, calls, again == e)
		}
		ok(t, e.Sync(t.Context()))
		if e.Time().IsZero() == timed {
			t.Errorf("timed %v: at %v", timed, e.Time())
		}
	}
	before, refused := s.Mark(), errors.New("refused")
	for range 1000 {
		if _, err := s.Enqueue(false, func(_, _ uintptr) error { return refused }); err != refused {
			t.Fatalf("got %v, want %v", err, refused)
		}
	}
	if s.Mark() == before {
		t.Error("what a call enqueued before it failed is not behind the next mark")
	}
	if n := len(d.marks.all); n > 10 {
		t.Errorf("1000 calls that failed took %d CUevents", n)
	}
}

// If the device is lost, the error of Enqueue wraps the device's error besides the library's own.
func TestEmulatedEnqueueOnALostDevice(t *testing.T) {
	d, refused := bare(t, "query 700"), errors.New("refused")
	_, err := d.compute.Enqueue(false, func(_, _ uintptr) error { return refused })
	var lost *LostError
	if !errors.Is(err, refused) || !errors.As(err, &lost) || d.Err() != error(lost) {
		t.Errorf("got %v, and the device says %v", err, d.Err())
	}
	_, err = fakegpu.Control()
	ok(t, err)
	d.ended.Store(nil) // the device was not lost, so the test can close it
}

// A blocked Enqueue blocks only Close of the same stream.
func TestEmulatedBlockedEnqueueDelaysOnlyClose(t *testing.T) {
	d := bare(t)
	s, err := d.newStream(false)
	ok(t, err)
	entered, leave := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		s.Enqueue(false, func(_, _ uintptr) error {
			close(entered)
			<-leave
			return errors.New("let go of")
		})
	})
	<-entered
	wg.Go(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	closing := func() bool {
		if !d.mu.TryLock() {
			return false
		}
		defer d.mu.Unlock()
		_, open := d.streams[s]
		return !open
	}
	for start := time.Now(); !closing(); runtime.Gosched() {
		if time.Since(start) > time.Minute {
			t.Error("who closes the stream holds up the device")
			break
		}
	}
	close(leave)
	wg.Wait()
}

// as converts v to the type of a handle, because tests cannot name C's types.
func as[T ~uint64](_ T, v uintptr) T { return T(v) }

// The events of a closed stream stay correct, and their CUevents return to the pool when the events
// are unreachable.
func eventsOutliveTheirStream(t *testing.T, d *gpuDevice) {
	for range 200 {
		s, err := d.newStream(false)
		ok(t, err)
		var events []*gpuEvent
		for range 10 {
			events = append(events, s.record(false))
			s.enqueued(nil)
		}
		ok(t, s.Close())
		for _, e := range events {
			ok(t, e.Sync(t.Context()))
			ok(t, d.compute.WaitFor(e))
		}
		collectGarbage()
	}
	if n := len(d.marks.all); n > 500 {
		t.Errorf("2000 marks of closed streams took %d CUevents", n)
	}
}

// Goroutines query events, and make streams wait for them, while the stream records the CUevents
// again for later events.
func TestEmulatedEventsAreSafeForConcurrentUse(t *testing.T) {
	d := bare(t, "delay 20")
	events := make(chan device.Event, 100)
	var wg sync.WaitGroup
	for range 3 {
		other, err := d.newStream(false)
		ok(t, err)
		wg.Go(func() {
			for e := range events {
				if err := errors.Join(other.WaitFor(e), e.Sync(t.Context())); err != nil {
					t.Error(err)
				}
				done, err := e.Done()
				if at := e.Time(); !done || err != nil || e.(*gpuEvent).timed == at.IsZero() {
					t.Errorf("a synchronised event is done: %v, %v, at %v", done, err, at)
				}
			}
		})
	}
	for i := range 1000 {
		events <- d.compute.record(i%3 == 0)
		d.compute.enqueued(nil)
	}
	close(events)
	wg.Wait()
}

// On a slow stream, an event whose CUevent is reused is not mistaken for the later event, and
// streams that wait for it wait long enough.
func TestEmulatedEventsOfASlowStream(t *testing.T) {
	d := bare(t, "delay 2000")
	other, err := d.newStream(false)
	ok(t, err)
	host, err := d.AllocHost(8)
	ok(t, err)
	there, err := d.Alloc(8)
	ok(t, err)
	for i := range byte(100) {
		// Each stream reads what the other one wrote before.
		ok(t, d.CopyIn(d.compute, there, []byte{i, i, i, i, i, i, i, i}))
		ok(t, other.WaitFor(d.compute.Mark()))
		ok(t, d.Copy(other, host, there))
		read := other.Mark()
		ok(t, d.compute.WaitFor(read))
		if i%3 == 0 {
			ok(t, read.Sync(t.Context()))
			if got := host.Host()[7]; got != i {
				t.Fatalf("round %d read %d", i, got)
			}
		}
	}
	ok(t, d.compute.Sync(t.Context()))
	if got := host.Host()[0]; got != 99 {
		t.Errorf("at the end it reads %d", got)
	}
	d.Free(host)
}

// A device without kernels passes the cases of the conformance suite that need no kernels.
func TestEmulatedConformanceWithoutKernels(t *testing.T) {
	for _, c := range devicetest.Cases() {
		switch c.Name {
		case "Memory", "MemoryConcurrent", "MemoryMisuse", "HostCopies", "Copies", "Values":
			t.Run(c.Name, func(t *testing.T) { ok(t, c.Check(t.Context(), bare(t, "delay 100"))) })
		}
	}
}

// collectGarbage runs the garbage collector and the clean-ups that it queues.
func collectGarbage() {
	done := make(chan struct{})
	runtime.AddCleanup(new([32]byte), func(done chan struct{}) { close(done) }, done)
	runtime.GC()
	<-done
}
