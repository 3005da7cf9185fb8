//go:build cgo && linux

package cuda

// #include "driver.h"
import "C"

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// Event implements device.Event: one of its stream's, which reaches them in
// order. Once the stream is known to be past it, its CUevent marks a later one.
type Event struct {
	s      *Stream
	number uint64 // among the stream's, from 1
	timed  bool
	err    error // recording failed

	// Under s.mu:
	handle C.uintptr_t // the CUevent; 0 once it was given back
	at     time.Time   // once known
}

// Done tells, without blocking, whether the point was reached. The error is
// the device's, if it failed on the way.
func (e *Event) Done() (bool, error) {
	e.s.mu.Lock()
	defer e.s.mu.Unlock()
	return e.done()
}

// done is Done; e.s.mu is held.
func (e *Event) done() (bool, error) {
	if e.err != nil {
		return false, e.err
	}
	s := e.s
	if err := s.d.Err(); err != nil {
		return false, err
	}
	if e.number <= s.reached {
		return true, nil
	}
	done, err := s.d.query(e.handle)
	if done {
		s.reached = e.number
	}
	return done, err
}

// Sync blocks the caller until the point is reached.
func (e *Event) Sync(ctx context.Context) error { return await(ctx, e.Done) }

// Time is when the point was reached, on the host's clock, to within about
// ten microseconds; the zero Time before that.
func (e *Event) Time() time.Time {
	e.s.mu.Lock()
	defer e.s.mu.Unlock()
	if done, err := e.done(); !done || err != nil {
		return time.Time{}
	}
	e.settle()
	return e.at
}

// settle finds the time of an event that was reached, if it has one. An error
// leaves it unknown. e.s.mu is held.
func (e *Event) settle() {
	if e.timed && e.at.IsZero() && e.handle != 0 {
		e.at, _ = e.s.d.clock.time(e.handle)
	}
}

// giveBack lets the CUevent of an event that was reached go. e.s.mu is held.
func (e *Event) giveBack() {
	e.settle()
	e.s.d.pool(e.timed).put(e.handle)
	e.handle = 0
}

// record marks the point behind everything that the stream was given.
func (s *Stream) record(timed bool) *Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := &Event{s: s, timed: timed}
	if e.err = s.d.Err(); e.err != nil {
		return e
	}
	pool := s.d.pool(timed)
	if pool.empty() {
		s.recycle()
	}
	if e.handle, e.err = pool.record(s.handle); e.err != nil {
		return e
	}
	s.number++
	e.number = s.number
	s.pending = append(s.pending, e)
	return e
}

// recycle gives the CUevents of the older half of the pending events back, if
// the stream is past them: a stream gets along with about twice as many as it
// ever lags behind, and asks for them once in as many events. s.mu is held.
func (s *Stream) recycle() {
	half := (len(s.pending) + 1) / 2
	if half == 0 {
		return
	}
	if done, err := s.pending[half-1].done(); !done || err != nil {
		return
	}
	for _, e := range s.pending[:half] {
		e.giveBack()
	}
	s.pending = slices.Delete(s.pending, 0, half)
}

// eventPool keeps the CUevents that nothing uses, all with a time or all
// without. One that is recorded again stands for its new point; a stream that
// was told to wait for it waits for the old one.
type eventPool struct {
	d     *Device
	timed bool
	mu    sync.Mutex
	free  []C.uintptr_t
	all   []C.uintptr_t
}

func (d *Device) pool(timed bool) *eventPool {
	if timed {
		return &d.events
	}
	return &d.marks
}

func (p *eventPool) empty() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.free) == 0
}

// record records a CUevent at the end of a stream. Who calls it puts it back.
func (p *eventPool) record(stream C.uintptr_t) (C.uintptr_t, error) {
	h, err := p.get()
	if err != nil {
		return 0, err
	}
	if err := p.d.check("cuEventRecord", C.drv_event_record(p.d.drv.fns, p.d.ctx, h, stream)); err != nil {
		p.put(h)
		return 0, err
	}
	return h, nil
}

// eventDisableTiming is CU_EVENT_DISABLE_TIMING.
const eventDisableTiming = 2

func (p *eventPool) get() (C.uintptr_t, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.free); n > 0 {
		h := p.free[n-1]
		p.free = p.free[:n-1]
		return h, nil
	}
	var h C.uintptr_t
	flags := C.uint(eventDisableTiming)
	if p.timed {
		flags = 0
	}
	if err := p.d.check("cuEventCreate", C.drv_event_create(p.d.drv.fns, p.d.ctx, &h, flags)); err != nil {
		return 0, err
	}
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
func (d *Device) query(h C.uintptr_t) (bool, error) {
	code := C.drv_event_query(d.drv.fns, d.ctx, h)
	if code == codeNotReady {
		return false, nil
	}
	return code == 0, d.check("cuEventQuery", code)
}

// elapsed is the time between two CUevents that were reached.
func (d *Device) elapsed(from, to C.uintptr_t) (time.Duration, error) {
	var ms C.float
	err := d.check("cuEventElapsedTime", C.drv_event_elapsed(d.drv.fns, d.ctx, &ms, from, to))
	return time.Duration(float64(ms) * float64(time.Millisecond)), err
}
