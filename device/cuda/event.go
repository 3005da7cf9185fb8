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
	"github.com/goddp/goddp/internal/poll"
)

// gpuEvent implements device.Event: one of its stream's, which reaches them in
// order. Once the stream is known to be past it, its CUevent marks a later one.
type gpuEvent struct {
	s      *gpuStream
	number uint64 // among the stream's, from 1
	timed  bool
	err    error // recording failed

	// Under s.mu:
	handle C.uintptr_t // the CUevent; 0 once it was given back
	users  int         // calls of the driver that are under way with it
	at     time.Time   // once known
}

// use takes the CUevent for a call of the driver, which drop ends. There is none
// to be had, nor needed, where the stream is known to be past the event.
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

// drop ends a call of the driver, which may have told that the event was reached.
func (e *gpuEvent) drop(reached bool) {
	e.s.mu.Lock()
	defer e.s.mu.Unlock()
	e.users--
	if reached {
		e.s.reached.Store(max(e.s.reached.Load(), e.number))
	}
}

// Done tells, without blocking, whether the point was reached. The error is
// the device's, if it failed on the way.
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
	done, err := e.s.d.query(h)
	e.drop(done)
	return done, err
}

// Sync blocks the caller until the point is reached.
func (e *gpuEvent) Sync(ctx context.Context) error { return poll.Until(ctx, e.Done) }

// Time is when the point was reached, on the host's clock, to within about
// ten microseconds; the zero Time before that.
func (e *gpuEvent) Time() time.Time {
	if done, err := e.Done(); !done || err != nil {
		return time.Time{}
	}
	s := e.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if !e.timed || !e.at.IsZero() || e.handle == 0 {
		return e.at
	}
	h := e.handle
	e.users++
	s.mu.Unlock()
	at, err := s.d.clock.time(h)
	s.mu.Lock()
	e.users--
	if err == nil && e.at.IsZero() { // an error leaves it unknown
		e.at = at
	}
	return e.at
}

// record marks the point behind everything that the stream was given. A mark
// with nothing enqueued since is the last one again.
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

// Enqueue has f enqueue on the stream what a library beside this package does, and
// record an event behind that, which it returns, with a time or without. f gets the
// CUstream and the CUevent, so that it takes one call of C, where Handle and Mark
// take two. Whoever marks or closes the stream meanwhile waits for f, which must
// not do so itself. If the device turns out to be lost, f's error wraps that too.
func (s *gpuStream) Enqueue(timed bool, f func(stream, event uintptr) error) (device.Event, error) {
	s.order.Lock()
	defer s.order.Unlock()
	s.changed.Store(false)
	e, err := s.append(timed, f)
	if err == nil {
		return e, nil
	}
	s.idle() // asks the driver, whose word on the device counts
	if lost := s.d.Err(); lost != nil && !errors.Is(err, lost) {
		err = fmt.Errorf("%w: %w", err, lost)
	}
	return nil, err
}

// append makes an event, which f records if there is one. s.order is held.
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
	s.pending = append(s.pending, e)
	s.last = e
	return e, nil
}

// take returns a CUevent that nothing uses, one of the stream's own if it can.
// s.order is held.
func (s *gpuStream) take(timed bool) (C.uintptr_t, error) {
	free := s.free(timed)
	if len(*free) == 0 {
		s.recycle()
	}
	if h, ok := free.pop(); ok {
		return h, nil
	}
	return s.d.pool(timed).get()
}

// free are the stream's CUevents that nothing uses, with or without a time.
func (s *gpuStream) free(timed bool) *handles {
	if timed {
		return &s.freeEvents
	}
	return &s.freeMarks
}

// recycle frees the CUevents of the older half of the pending events, if the
// stream is past them: a stream gets along with about twice as many as it ever
// lags behind, and asks for them once in as many events. s.order is held.
func (s *gpuStream) recycle() {
	half := (len(s.pending) + 1) / 2
	if half == 0 {
		return
	}
	if done, err := s.pending[half-1].Done(); !done || err != nil {
		return
	}
	last := s.pending[half-1].number
	for _, e := range s.pending[:half] {
		if e.timed {
			e.Time() // keeps the time, as the CUevent goes
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

// eventPool has a device's CUevents, all with a time or all without, and keeps
// those that nothing uses, no stream either. One that is recorded again stands
// for its new point; a stream that was told to wait for it waits for the old one.
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

// record records a CUevent at the end of a stream. Who calls it puts it back,
// unless that failed.
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

// handles are CUevents that nothing uses.
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

// close destroys every CUevent, also those that something still uses.
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

// query tells whether a CUevent was reached.
func (d *gpuDevice) query(h C.uintptr_t) (bool, error) {
	code := C.drv_event_query(d.drv.fns, d.ctx, h)
	if code == codeNotReady {
		return false, nil
	}
	return code == 0, d.check("cuEventQuery", code)
}

// elapsed is the time between two CUevents that were reached.
func (d *gpuDevice) elapsed(from, to C.uintptr_t) (time.Duration, error) {
	var ms C.float
	err := d.check("cuEventElapsedTime", C.drv_event_elapsed(d.drv.fns, d.ctx, &ms, from, to))
	return time.Duration(float64(ms) * float64(time.Millisecond)), err
}
