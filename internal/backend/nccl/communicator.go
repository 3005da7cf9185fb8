//go:build cgo && linux

package nccl

// #include "abi.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// Bounds of ending a communicator. lookTime is for the driver to say what is
// done already. A call that is inside NCCL gets drainTime to come out before
// the communicator is aborted under it: then the abort is what makes it come
// out.
const (
	abortTime = 2 * time.Second
	lookTime  = 50 * time.Millisecond
	drainTime = 200 * time.Millisecond
)

// errGone is what calls on a communicator that was ended return; the group
// broke, or was closed, before.
var errGone = errors.New("the communicator was aborted")

// errInside says that the abort did not make a call come out of NCCL: what that
// call uses must stay.
var errInside = errors.New("a call is still inside NCCL after the abort")

// communicator is one ncclComm_t, a blocking one.
type communicator struct {
	lib    *library
	handle atomic.Uintptr // 0 once ended
	shot   *oneShot       // for all-reduces of few bytes; nil: NCCL has those too

	// inside is held, shared, by calls inside NCCL, and by the call that ends
	// the communicator.
	inside sync.RWMutex
}

// detach runs f, which may block in C for ever, on a thread of its own, and
// waits for it while ctx lasts. If ctx ends first its cause is returned, that
// thread is left to itself, and late is called with what f returns if it ever
// does.
func detach[T any](ctx context.Context, f func() (T, error), late func(T)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result) // a result is either taken or late
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		v, err := f()
		select {
		case done <- result{v, err}:
		case <-ctx.Done():
			if err == nil && late != nil {
				late(v)
			}
		}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
}

// connect makes a communicator of size ranks under the name id, while ctx
// lasts. All ranks call it, with or without a shot.
func (l *library) connect(ctx context.Context, id []byte, rank, size int, shot *oneShot) (*communicator, error) {
	if len(id) != C.unique_id_size {
		return nil, fmt.Errorf("a communicator's name of %d bytes, want %d", len(id), C.unique_id_size)
	}
	return detach(ctx, func() (*communicator, error) {
		var handle C.uintptr_t
		code := C.nccl_init(l.nccl, l.driver, l.ctx, &handle, C.int(size), (*C.unique_id)(unsafe.Pointer(&id[0])), C.int(rank))
		if err := l.check("ncclCommInitRankConfig", code); err != nil {
			return nil, err
		}
		c := &communicator{lib: l, shot: shot}
		c.handle.Store(uintptr(handle))
		return c, nil
	}, func(c *communicator) { c.abort() })
}

// within calls f with the communicator's handle, or returns errGone.
func (c *communicator) within(f func(C.uintptr_t) error) error {
	c.inside.RLock()
	defer c.inside.RUnlock()
	h := c.handle.Load()
	if h == 0 {
		return errGone
	}
	return f(C.uintptr_t(h))
}

// enqueue enqueues operations on a stream, as one group, and an event behind them.
func (c *communicator) enqueue(stream, event uintptr, ops []op) error {
	return c.within(func(h C.uintptr_t) error {
		if c.shot.takes(ops) {
			return c.shot.enqueue(stream, event, &ops[0])
		}
		l := c.lib
		code := C.nccl_enqueue(l.nccl, l.driver, l.ctx, h, C.uintptr_t(stream), C.uintptr_t(event), unsafe.SliceData(ops), C.int(len(ops)))
		switch {
		case code == 0:
			return nil
		case code < 0:
			return l.check("the context or the event of "+callName(ops), code)
		}
		return l.check(callName(ops), code)
	})
}

// asyncError is a failure that NCCL noticed after a call returned.
func (c *communicator) asyncError() error {
	if !c.inside.TryRLock() { // it is being ended
		return nil
	}
	defer c.inside.RUnlock()
	h := c.handle.Load()
	if h == 0 {
		return nil
	}
	var code C.int
	if err := c.lib.check("ncclCommGetAsyncError", C.nccl_async_error(c.lib.nccl, C.uintptr_t(h), &code)); err != nil {
		return err
	}
	return c.lib.check("asynchronous error", code)
}

// abort ends the communicator: its kernels stop. It may block. The error is
// errInside if a call stays in NCCL all the same.
func (c *communicator) abort() error {
	locked := c.lock(drainTime)
	defer func() {
		if locked {
			c.inside.Unlock()
		}
	}()
	c.shot.halt() // not while a call is waited for: NCCL's kernels behind it would begin
	var err error
	if h := c.handle.Swap(0); h != 0 {
		err = c.lib.check("ncclCommAbort", C.nccl_abort(c.lib.nccl, c.lib.driver, c.lib.ctx, C.uintptr_t(h)))
	}
	if !locked {
		if locked = c.lock(drainTime); !locked {
			err = errors.Join(err, errInside)
		}
	}
	return err
}

// unmap gives up what there is of a shot on other ranks. It may block.
func (c *communicator) unmap() error { return c.shot.unmap() }

// destroy ends the communicator in good order: all ranks call it, with nothing in
// flight. It may block.
func (c *communicator) destroy() error {
	c.inside.Lock()
	defer c.inside.Unlock()
	h := c.handle.Swap(0)
	if h == 0 {
		return nil
	}
	return c.lib.check("ncclCommDestroy", C.nccl_destroy(c.lib.nccl, c.lib.driver, c.lib.ctx, C.uintptr_t(h)))
}

// lock waits until no call is inside NCCL, for a bounded time.
func (c *communicator) lock(bound time.Duration) bool {
	for deadline := time.Now().Add(bound); ; time.Sleep(time.Millisecond) {
		if c.inside.TryLock() {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
	}
}
