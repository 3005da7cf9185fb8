//go:build cgo && linux

package cuda

// #include "driver.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// gpuEvent implements device.Event. A stream completes its events in order. Once an event is known
// to be complete, its CUevent is reused for a later event.
type gpuEvent struct {
	s      *gpuStream
	number uint64 // the event's position among the stream's events, from 1
	timed  bool
	err    error    // the error of recording
	in     *capture // the capture that the event belongs to, or nil

	// s.mu guards the fields below.
	handle C.uintptr_t // the CUevent; 0 after the event has returned it
	users  int         // the number of driver calls in progress that use handle
	at     time.Time   // zero until it is known
}

// use returns the CUevent for a driver call; the caller must call drop afterwards. If the event is
// known to be complete, it has no CUevent, and ok is false.
func (e *gpuEvent) use() (_ C.uintptr_t, ok bool) {
	if e.number <= e.s.reached.Load() {
		return 0, false
	}
	e.s.mu.Lock()
	defer e.s.mu.Unlock()
	if e.number <= e.s.reached.Load() {
		return 0, false
	}
	e.users++
	return e.handle, true
}

// drop ends the use of the CUevent. reached reports whether the driver call showed that the event
// is complete.
func (e *gpuEvent) drop(reached bool) {
	e.s.mu.Lock()
	defer e.s.mu.Unlock()
	e.users--
	if reached {
		e.s.reached.Store(max(e.s.reached.Load(), e.number))
	}
}

// Done reports, without blocking, whether the stream has reached the event. It returns the device's
// error if the device failed.
func (e *gpuEvent) Done() (bool, error) {
	if e.err != nil {
		return false, e.err
	}
	if err := e.s.d.Err(); err != nil {
		return false, err
	}
	h, ok := e.use()
	if !ok {
		return true, nil
	}
	if e.in != nil { // the driver must not be queried about a captured event
		e.drop(false)
		if e.in == e.s.d.capture() {
			return false, e.in.refuse("a wait for the GPU")
		}
		return false, nil
	}
	done, err := e.s.d.query(h)
	e.drop(done)
	return done, err
}

// Sync blocks until the stream has reached the event.
func (e *gpuEvent) Sync(ctx context.Context) error { return kernels.Poll(ctx, e.Done) }

// Time returns when the stream reached the event, on the host's clock, to within about ten
// microseconds. Before that it returns the zero Time.
func (e *gpuEvent) Time() time.Time {
	if done, err := e.Done(); !done || err != nil {
		return time.Time{}
	}
	s := e.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if !e.timed || !e.at.IsZero() || e.handle == 0 || e.in != nil {
		return e.at
	}
	h := e.handle
	e.users++
	s.mu.Unlock()
	at, err := s.d.clock.time(h)
	s.mu.Lock()
	e.users--
	if err == nil && e.at.IsZero() { // after an error the time stays unknown
		e.at = at
	}
	return e.at
}

// record returns an event after everything enqueued on the stream. If nothing was enqueued since the previous event,
// and timed is false, it may return the previous event.
func (s *gpuStream) record(timed bool) *gpuEvent {
	s.order.Lock()
	defer s.order.Unlock()
	if changed := s.changed.Swap(false) || s.shared.Load(); !changed && !timed && s.last != nil && !s.last.timed && s.d.Err() == nil {
		return s.last
	}
	e, err := s.append(timed, nil)
	if err != nil {
		return &gpuEvent{s: s, timed: timed, err: err}
	}
	return e
}

// Enqueue calls f, which must enqueue another library's work on the stream and record the given CUevent after
// it. Enqueue returns the event, with or without timing. f gets both the CUstream and the CUevent, so
// that one cgo call suffices; with Handle and Mark, two would be needed. Mark, Record and Close of the
// stream block during f, and f must not call them. If the device is lost, f's error also wraps the
// device's error.
func (s *gpuStream) Enqueue(timed bool, f func(stream, event uintptr) error) (device.Event, error) {
	s.order.Lock()
	defer s.order.Unlock()
	s.changed.Store(false)
	e, err := s.append(timed, f)
	if err == nil {
		return e, nil
	}
	s.idle() // detects a lost device
	if lost := s.d.Err(); lost != nil && !errors.Is(err, lost) {
		err = fmt.Errorf("%w: %w", err, lost)
	}
	return nil, err
}

// append creates an event. If f is not nil, f records it. The caller must hold s.order.
func (s *gpuStream) append(timed bool, f func(stream, event uintptr) error) (*gpuEvent, error) {
	s.last = nil
	if err := s.d.Err(); err != nil {
		return nil, err
	}
	h, err := s.take(timed)
	if err != nil {
		return nil, err
	}
	if f != nil {
		err = f(uintptr(s.handle), uintptr(h))
	} else {
		err = s.d.mark(h, s.handle)
	}
	if err != nil {
		free := s.free(timed)
		*free = append(*free, h)
		return nil, err
	}
	s.number++
	if len(s.unused) == 0 {
		s.unused = make([]gpuEvent, 32)
	}
	e := &s.unused[0]
	s.unused = s.unused[1:]
	e.s, e.number, e.timed, e.handle = s, s.number, timed, h
	if r := s.d.capture(); r != nil && r.captures(s) {
		e.in = r
	}
	s.pending = append(s.pending, e)
	s.last = e
	return e, nil
}

// take returns an unused CUevent, preferably one of the stream's. The caller must hold s.order.
func (s *gpuStream) take(timed bool) (C.uintptr_t, error) {
	free := s.free(timed)
	if len(*free) == 0 && s.d.capture() == nil {
		s.recycle()
	}
	if h, ok := free.pop(); ok {
		return h, nil
	}
	return s.d.pool(timed).get()
}

// free returns the stream's unused CUevents, timed or untimed.
func (s *gpuStream) free(timed bool) *handles {
	if timed {
		return &s.freeEvents
	}
	return &s.freeMarks
}

// recycleFrom is the number of pending events from which recycle queries the driver.
const recycleFrom = 32

// recycle frees the CUevents of the older half of the pending events, if the stream has passed
// them. So a stream needs about twice as many CUevents as it has events in flight, and queries the
// driver rarely. The caller must hold s.order.
func (s *gpuStream) recycle() {
	if len(s.pending) < recycleFrom {
		return
	}
	half := (len(s.pending) + 1) / 2
	if done, err := s.pending[half-1].Done(); !done || err != nil {
		return
	}
	last := s.pending[half-1].number
	for _, e := range s.pending[:half] {
		if e.timed {
			e.Time() // stores the time before the CUevent is reused
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = slices.DeleteFunc(s.pending, func(e *gpuEvent) bool {
		unused := e.number <= last && e.users == 0
		if unused {
			free := s.free(e.timed)
			*free = append(*free, e.handle)
			e.handle = 0
		}
		return unused
	})
}

// eventPool holds a device's CUevents, either timed or untimed, and keeps the unused ones.
// Recording a CUevent again moves it to the new point. A stream that already waits for it still
// waits for the old point.
type eventPool struct {
	d     *gpuDevice
	timed bool
	mu    sync.Mutex
	free  handles
	all   []C.uintptr_t
}

func (d *gpuDevice) pool(timed bool) *eventPool {
	if timed {
		return &d.events
	}
	return &d.marks
}

// record records a CUevent at the end of a stream. On success, the caller must return the CUevent
// to the pool after use.
func (p *eventPool) record(stream C.uintptr_t) (C.uintptr_t, error) {
	h, err := p.get()
	if err != nil {
		return 0, err
	}
	if err := p.d.mark(h, stream); err != nil {
		p.put(h)
		return 0, err
	}
	return h, nil
}

// mark records a CUevent at the end of a stream.
func (d *gpuDevice) mark(h, stream C.uintptr_t) error {
	return d.check("cuEventRecord", C.drv_event_record(d.drv.fns, d.ctx, h, stream))
}

// eventDisableTiming is CU_EVENT_DISABLE_TIMING.
const eventDisableTiming = 2

// handles are unused CUevents.
type handles []C.uintptr_t

func (hs *handles) pop() (h C.uintptr_t, ok bool) {
	n := len(*hs)
	if n == 0 {
		return 0, false
	}
	h, *hs = (*hs)[n-1], (*hs)[:n-1]
	return h, true
}

func (p *eventPool) get() (C.uintptr_t, error) {
	p.mu.Lock()
	h, ok := p.free.pop()
	p.mu.Unlock()
	if ok {
		return h, nil
	}
	flags := C.uint(eventDisableTiming)
	if p.timed {
		flags = 0
	}
	if err := p.d.check("cuEventCreate", C.drv_event_create(p.d.drv.fns, p.d.ctx, &h, flags)); err != nil {
		return 0, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all = append(p.all, h)
	return h, nil
}

func (p *eventPool) put(hs ...C.uintptr_t) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, hs...)
}

// close destroys all CUevents, including those in use.
func (p *eventPool) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, h := range p.all {
		errs = append(errs, p.d.check("cuEventDestroy", C.drv_event_destroy(p.d.drv.fns, p.d.ctx, h)))
	}
	p.all, p.free = nil, nil
	return errors.Join(errs...)
}

// query reports whether a CUevent is complete.
func (d *gpuDevice) query(h C.uintptr_t) (bool, error) {
	code := C.drv_event_query(d.drv.fns, d.ctx, h)
	if code == codeNotReady {
		return false, nil
	}
	return code == 0, d.check("cuEventQuery", code)
}

// elapsed returns the time between two complete CUevents.
func (d *gpuDevice) elapsed(from, to C.uintptr_t) (time.Duration, error) {
	var ms C.float
	err := d.check("cuEventElapsedTime", C.drv_event_elapsed(d.drv.fns, d.ctx, &ms, from, to))
	return time.Duration(float64(ms) * float64(time.Millisecond)), err
}
