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

// Timeouts: abortTimeout for destroying a communicator, pollTimeout for polling finished calls before an
// abort, and drainTimeout for calls to return from NCCL before the communicator is aborted, which makes
// them return.
const (
	abortTimeout = 2 * time.Second
	pollTimeout  = 50 * time.Millisecond
	drainTimeout = 200 * time.Millisecond
)

// errCommEnded is the error of calls on a destroyed or aborted communicator, after the group was broken
// or closed.
var errCommEnded = errors.New("the communicator was aborted")

// errCallStuck reports that a call did not return from NCCL although its communicator was aborted. The
// memory and streams that the call uses must not be freed.
var errCallStuck = errors.New("a call is still inside NCCL after the abort")

// communicator is one blocking ncclComm_t.
type communicator struct {
	lib    *library
	handle atomic.Uintptr  // 0 when the communicator has been destroyed or aborted
	small  *smallAllReduce // nil if NCCL runs small all-reduces too
	halted chan struct{}   // closed during an abort, when no call is inside NCCL and none can enter

	// inside is held for reading by calls inside NCCL, and for writing while the communicator is
	// destroyed or aborted.
	inside sync.RWMutex
}

// detach runs f, which may block in C forever, on a separate thread, and waits for it until ctx ends. If
// ctx ends first, detach returns ctx's cause and abandons the thread. If f returns later without an
// error, late is called with its result.
func detach[T any](ctx context.Context, f func() (T, error), late func(T)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result) // every result is received here or passed to late
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

// connect creates a communicator of size ranks with the ncclUniqueId id. All ranks must call it. It
// returns at the latest when ctx ends.
func (l *library) connect(ctx context.Context, id []byte, rank, size int, small *smallAllReduce) (*communicator, error) {
	if len(id) != C.unique_id_size {
		return nil, fmt.Errorf("rank 0 sent an ncclUniqueId of %d bytes, want %d", len(id), C.unique_id_size)
	}
	return detach(ctx, func() (*communicator, error) {
		var handle C.uintptr_t
		code := C.nccl_init(l.nccl, l.driver, l.ctx, &handle, C.int(size), (*C.unique_id)(unsafe.Pointer(&id[0])), C.int(rank))
		if err := l.check("ncclCommInitRankConfig", code); err != nil {
			return nil, err
		}
		c := &communicator{lib: l, small: small, halted: make(chan struct{})}
		c.handle.Store(uintptr(handle))
		return c, nil
	}, func(c *communicator) { c.abort() })
}

// withHandle calls f with the ncclComm_t, or returns errCommEnded.
func (c *communicator) withHandle(f func(C.uintptr_t) error) error {
	c.inside.RLock()
	defer c.inside.RUnlock()
	h := c.handle.Load()
	if h == 0 {
		return errCommEnded
	}
	return f(C.uintptr_t(h))
}

// enqueue enqueues operations on a stream as one NCCL group, and records event after them.
func (c *communicator) enqueue(stream, event uintptr, ops []op) error {
	return c.withHandle(func(h C.uintptr_t) error {
		if c.small.handles(ops) {
			return c.small.enqueue(stream, event, &ops[0])
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

// asyncError returns NCCL's asynchronous error.
func (c *communicator) asyncError() error {
	if !c.inside.TryRLock() { // the communicator is being ended
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

// abort aborts the communicator and stops its kernels. It may block. The error is errCallStuck if a call
// did not return from NCCL.
func (c *communicator) abort() error {
	locked := c.lock(drainTimeout)
	defer func() {
		if locked {
			c.inside.Unlock()
		}
	}()
	c.small.halt() // not earlier, because NCCL kernels behind a halted kernel on the stream would start
	var err error
	if h := c.handle.Swap(0); h != 0 {
		if locked {
			close(c.halted)
		}
		err = c.lib.check("ncclCommAbort", C.nccl_abort(c.lib.nccl, c.lib.driver, c.lib.ctx, C.uintptr_t(h)))
	}
	if !locked {
		if locked = c.lock(drainTimeout); !locked {
			err = errors.Join(err, errCallStuck)
		}
	}
	return err
}

// unmap unmaps other ranks' memory for small all-reduces. It may block.
func (c *communicator) unmap() error { return c.small.unmap() }

// destroy destroys the communicator. All ranks must call it, with no call pending. It may block.
func (c *communicator) destroy() error {
	c.inside.Lock()
	defer c.inside.Unlock()
	h := c.handle.Swap(0)
	if h == 0 {
		return nil
	}
	return c.lib.check("ncclCommDestroy", C.nccl_destroy(c.lib.nccl, c.lib.driver, c.lib.ctx, C.uintptr_t(h)))
}

// lock waits until no call is inside NCCL, at most for the time bound.
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
