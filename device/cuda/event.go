//go:build cgo && linux

package cuda

// #include "driver.h"
import "C"

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"
)

// Event implements device.Event. Its CUevent comes from the device's pool and
// goes back to it when the Event is unreachable, to be recorded again: a
// stream that was told to wait for it waits for the point of that time.
type Event struct {
	d      *Device
	handle C.uintptr_t
	timed  bool
	err    error // recording failed

	mu sync.Mutex
	at time.Time // once known
}

// Handle is the CUevent. It is valid while e is reachable.
func (e *Event) Handle() uintptr { return uintptr(e.handle) }

// with calls f with the CUevent, which stays e's meanwhile.
func (e *Event) with(f func(C.uintptr_t) C.int) C.int {
	defer runtime.KeepAlive(e)
	return f(e.handle)
}

// Done tells, without blocking, whether the point was reached. The error is
// the device's, if it failed on the way.
func (e *Event) Done() (bool, error) {
	if e.err != nil {
		return false, e.err
	}
	if err := e.d.Err(); err != nil {
		return false, err
	}
	code := e.with(func(h C.uintptr_t) C.int { return C.drv_event_query(e.d.drv.fns, e.d.ctx, h) })
	if code == codeNotReady {
		return false, nil
	}
	return code == 0, e.d.check("cuEventQuery", code)
}

// Sync blocks the caller until the point is reached.
func (e *Event) Sync(ctx context.Context) error { return await(ctx, e.Done) }

// Time is when the point was reached, on the host's clock, to within about
// ten microseconds; the zero Time before that.
func (e *Event) Time() time.Time {
	if done, err := e.Done(); !done || err != nil || !e.timed {
		return time.Time{}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.at.IsZero() {
		e.at, _ = e.d.clock.time(e) // an error leaves it unknown
	}
	return e.at
}

// eventDisableTiming is CU_EVENT_DISABLE_TIMING.
const eventDisableTiming = 2

// eventPool keeps the CUevents that no Event uses, all with a time or all
// without.
type eventPool struct {
	d     *Device
	timed bool
	mu    sync.Mutex
	free  []C.uintptr_t
	all   []C.uintptr_t
}

// record makes an Event at the end of a stream.
func (p *eventPool) record(s *Stream) *Event {
	e := &Event{d: p.d, timed: p.timed}
	if e.err = p.d.Err(); e.err != nil {
		return e
	}
	if e.handle, e.err = p.get(); e.err != nil {
		return e
	}
	runtime.AddCleanup(e, p.put, e.handle) // on the collector's goroutine: it must not call CUDA
	e.err = p.d.check("cuEventRecord", C.drv_event_record(p.d.drv.fns, p.d.ctx, e.handle, s.handle))
	return e
}

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

func (p *eventPool) put(h C.uintptr_t) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, h)
}

// close destroys every event, also those that someone still holds.
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
