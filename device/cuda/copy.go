//go:build cgo && linux

package cuda

// #include "driver.h"
import "C"

import (
	"context"
	"fmt"
	"sync"
	"time"
	"unsafe"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
)

// Copies between device and host are staged through pieces of pinned memory, which the GPU's copy
// engines access directly.
const (
	pieceSize   = 4 << 20          // the maximum size of one piece
	stagingSize = 64 << 20         // the maximum size of all pieces in flight
	stagingWait = 10 * time.Minute // how long CopyIn waits for the oldest piece before it returns an error
)

// Copy enqueues a copy of src to dst. Their lengths must be equal, and at least one of them must be
// in device memory, because the driver would block for a copy within host memory.
func (d *gpuDevice) Copy(st device.Stream, dst, src device.Buffer) error {
	operand.Bytes("Copy", dst.Len(), src.Len())
	s := d.stream(st)
	if err := d.Err(); err != nil || dst.Len() == 0 {
		return err
	}
	to, from, n := C.uint64_t(dst.Addr()), C.uint64_t(src.Addr()), C.size_t(dst.Len())
	switch {
	case dst.Host() == nil && src.Host() == nil:
		return s.enqueued(d.check("cuMemcpyDtoDAsync", C.drv_copy(d.drv.fns, d.ctx, to, from, n, s.handle)))
	case dst.Host() == nil:
		return s.enqueued(d.check("cuMemcpyHtoDAsync", C.drv_copy_in(d.drv.fns, d.ctx, to, unsafe.Pointer(unsafe.SliceData(src.Host())), n, s.handle)))
	case src.Host() == nil:
		return s.enqueued(d.check("cuMemcpyDtoHAsync", C.drv_copy_out(d.drv.fns, d.ctx, unsafe.Pointer(unsafe.SliceData(dst.Host())), from, n, s.handle)))
	}
	panic(fmt.Errorf("%s: Copy of %d bytes from host to host, want device memory on one side", d.name, dst.Len()))
}

// CopyIn enqueues a copy of src to dst, which have the same length. It returns when src has been
// copied to pinned memory, which may be before dst is written.
func (d *gpuDevice) CopyIn(st device.Stream, dst device.Buffer, src []byte) error {
	operand.Bytes("CopyIn", dst.Len(), len(src))
	s := d.stream(st)
	if r := d.capture(); r != nil {
		return r.refuse("a copy from the program's memory")
	}
	for off := 0; off < len(src); off += pieceSize {
		n := min(pieceSize, len(src)-off)
		p, err := d.staging.get(n)
		if err != nil {
			return err
		}
		copy(p.Host(), src[off:off+n])
		err = s.enqueued(d.check("cuMemcpyHtoDAsync", C.drv_copy_in(d.drv.fns, d.ctx,
			C.uint64_t(dst.Addr())+C.uint64_t(off), unsafe.Pointer(unsafe.SliceData(p.Host())), C.size_t(n), s.handle)))
		d.staging.put(p, s.Mark())
		if err != nil {
			return err
		}
	}
	return d.Err()
}

// CopyOut waits for everything enqueued on the stream and copies src to dst, which have the same
// length. If ctx ends first, dst holds a part of the data.
func (d *gpuDevice) CopyOut(ctx context.Context, st device.Stream, dst []byte, src device.Buffer) error {
	operand.Bytes("CopyOut", len(dst), src.Len())
	if ctx.Err() != nil {
		return fmt.Errorf("%s: CopyOut of %d bytes: %w", d.name, len(dst), context.Cause(ctx))
	}
	s := d.stream(st)
	if r := d.capture(); r != nil {
		return r.refuse("a wait for the GPU")
	}
	// While the GPU copies one piece to the host, CopyOut copies the piece before it to dst.
	var before flight
	for off := 0; off < len(dst); off += pieceSize {
		next, err := d.fetch(s, dst[off:min(off+pieceSize, len(dst))], src, off)
		if err == nil {
			err = before.land(ctx)
		}
		if err != nil {
			next.drop()
			return err
		}
		before = next
	}
	return before.land(ctx)
}

// flight is a piece in flight from the GPU to the host. The zero flight means none.
type flight struct {
	d     *gpuDevice
	dst   []byte
	piece device.Buffer
	done  device.Event
}

// fetch enqueues a copy of len(dst) bytes of src, from offset off, to a piece of pinned memory.
func (d *gpuDevice) fetch(s *gpuStream, dst []byte, src device.Buffer, off int) (flight, error) {
	p, err := d.staging.get(len(dst))
	if err != nil {
		return flight{}, err
	}
	err = s.enqueued(d.check("cuMemcpyDtoHAsync", C.drv_copy_out(d.drv.fns, d.ctx,
		unsafe.Pointer(unsafe.SliceData(p.Host())), C.uint64_t(src.Addr())+C.uint64_t(off), C.size_t(len(dst)), s.handle)))
	return flight{d, dst, p, s.Mark()}, err
}

// land waits for the piece, copies it to its place in dst, and returns it to the staging memory.
func (f flight) land(ctx context.Context) error {
	if f.d == nil {
		return nil
	}
	defer f.drop()
	if err := f.done.Sync(ctx); err != nil {
		return fmt.Errorf("%s: CopyOut: %w", f.d.name, err)
	}
	copy(f.dst, f.piece.Host())
	return nil
}

// drop returns the piece to the staging memory, although the GPU may still be writing it.
func (f flight) drop() {
	if f.d != nil {
		f.d.staging.put(f.piece, f.done)
	}
}

// staging is the pinned memory of copies in flight.
type staging struct {
	d *gpuDevice

	mu   sync.Mutex
	busy []piece // in the order in which put received them
	size int     // the bytes of busy
}

type piece struct {
	mem  device.Buffer
	idle device.Event
}

// get returns a piece of n bytes. If too many bytes are in flight, get waits for the oldest piece.
func (st *staging) get(n int) (device.Buffer, error) {
	if err := st.d.Err(); err != nil {
		return device.Buffer{}, err
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	for st.size > stagingSize {
		ctx, cancel := context.WithTimeout(st.d.life, stagingWait)
		err := st.busy[0].idle.Sync(ctx)
		cancel()
		if err != nil {
			return device.Buffer{}, fmt.Errorf("%s: waiting for the first of %d bytes of copies in flight: %w", st.d.name, st.size, err)
		}
		st.reclaim()
	}
	st.reclaim()
	return st.d.pinned.Alloc(n)
}

// put returns a piece, which get may reuse after the event idle.
func (st *staging) put(mem device.Buffer, idle device.Event) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.busy = append(st.busy, piece{mem, idle})
	st.size += mem.Len()
}

// reclaim frees the pieces at the head of busy whose events are complete.
func (st *staging) reclaim() {
	for len(st.busy) > 0 {
		p := st.busy[0]
		if done, err := p.idle.Done(); !done || err != nil {
			return
		}
		st.busy = st.busy[1:]
		st.size -= p.mem.Len()
		st.d.pinned.Free(p.mem)
	}
}

// pin allocates pinned memory for the arena pinned.
func (d *gpuDevice) pin(size int) (device.Buffer, error) {
	var p unsafe.Pointer
	if err := d.check("cuMemHostAlloc", C.drv_host_alloc(d.drv.fns, d.ctx, &p, C.size_t(size))); err != nil {
		return device.Buffer{}, err
	}
	return device.HostBuffer(unsafe.Slice((*byte)(p), size), nil), nil
}

func (d *gpuDevice) unpin(b device.Buffer) {
	// The error is ignored, because Close's own calls would return the same error.
	C.drv_host_free(d.drv.fns, d.ctx, unsafe.Pointer(unsafe.SliceData(b.Host())))
}
