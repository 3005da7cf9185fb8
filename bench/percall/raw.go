//go:build cgo && linux

package main

// #include "raw.h"
import "C"

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"time"
	"unsafe"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/dl"
)

// raw is C's communicator and stream, which are independent of goddp.
type raw struct {
	c       C.raw
	version string
	timeout time.Duration
}

// openRaw makes C's communicator on the group's device. All ranks of the group must call it. It
// returns the side without events, the side with events, and a function that ends the communicator.
// timeout bounds that function and the waits of the calls. After an error the process must exit.
func openRaw(ctx context.Context, pg *comm.ProcessGroup, dev gpu, timeout time.Duration) (plain, evented side, leave func() error, err error) {
	lib, err := dl.Open(dl.NVIDIA("NCCL", "GODDP_LIBNCCL", "libnccl.so.2", "libnccl.so"))
	if err != nil {
		return side{}, side{}, nil, err
	}
	r := &raw{timeout: timeout}
	r.c.ctx = C.uintptr_t(dev.Context())
	for i := range C.int(C.raw_count) {
		symbol, lookup := C.GoString(C.raw_symbol(i)), lib.Lookup
		if strings.HasPrefix(symbol, "cu") {
			lookup = dev.Lookup
		}
		f, err := lookup(symbol)
		if err != nil {
			return side{}, side{}, nil, err
		}
		C.raw_set(&r.c, i, f)
	}
	var version C.int
	if err := r.check("ncclGetVersion", C.raw_version(&r.c, &version)); err != nil {
		return side{}, side{}, nil, err
	}
	r.version = fmt.Sprintf("%d.%d.%d", version/10000, version/100%100, version%100)
	name := fmt.Sprintf("NCCL %s from C", r.version)
	return side{name, r.calls(false)}, side{name + " with events", r.calls(true)}, r.leave, r.join(ctx, pg)
}

// join makes the communicator, with the other ranks of the group.
func (r *raw) join(ctx context.Context, pg *comm.ProcessGroup) error {
	var id [C.unique_id_size]byte
	if pg.Rank() == 0 {
		if err := r.check("ncclGetUniqueId", C.raw_unique_id(&r.c, (*C.unique_id)(unsafe.Pointer(&id)))); err != nil {
			return err
		}
	}
	if err := comm.BroadcastObject(ctx, pg, &id, 0); err != nil {
		return err
	}
	return r.withTimeout("ncclCommInitRank", func() C.int {
		return C.raw_join(&r.c, C.int(pg.Size()), (*C.unique_id)(unsafe.Pointer(&id)), C.int(pg.Rank()))
	})
}

// calls returns a function that makes n all-reduces of t in one call of C, and waits for them. If events
// is set, it records an event after each all-reduce.
func (r *raw) calls(events bool) func(context.Context, device.Tensor, int) (time.Duration, error) {
	record := C.int(0)
	if events {
		record = 1
	}
	return func(_ context.Context, t device.Tensor, n int) (time.Duration, error) {
		var took C.double
		code := C.raw_calls(&r.c, C.uintptr_t(t.Buf.Addr()), C.size_t(t.Len()), C.int(n), record, C.double(r.timeout.Seconds()), &took)
		runtime.KeepAlive(t)
		if code == C.raw_late {
			return 0, fmt.Errorf("%d calls of ncclAllReduce were not done within %v", n, r.timeout)
		}
		return time.Duration(float64(took) * 1e9), r.check("ncclAllReduce", code)
	}
}

// leave aborts the communicator with all calls that hang. Otherwise the device would hang when it
// frees memory.
func (r *raw) leave() error {
	return r.withTimeout("ncclCommAbort", func() C.int { return C.raw_leave(&r.c) })
}

// withTimeout runs call, which may block in C. If that takes too long, it leaves the call behind on
// its thread; the program then exits.
func (r *raw) withTimeout(name string, call func() C.int) error {
	done := make(chan C.int, 1)
	go func() { done <- call() }()
	select {
	case code := <-done:
		return r.check(name, code)
	case <-time.After(r.timeout):
		return fmt.Errorf("%s did not return within %v", name, r.timeout)
	}
}

func (r *raw) check(call string, code C.int) error {
	switch {
	case code == 0:
		return nil
	case code < 0:
		return fmt.Errorf("CUDA error %d around %s", -code, call)
	}
	return fmt.Errorf("%s of NCCL %s: %s (%d)", call, r.version, C.GoString(C.raw_error_string(&r.c, code)), code)
}
