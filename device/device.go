package device

import (
	"context"
	"time"
)

// Device is a processor with its memory: the host's cores, or one GPU.
type Device interface {
	// String is the device's name: "cpu", "cuda:1".
	String() string

	// Alloc returns size bytes from the device's caching arena, aligned to
	// Align, their content undefined. Safe for concurrent use. The error is
	// an [*OutOfMemoryError].
	Alloc(size int) (Buffer, error)
	// AllocHost returns size bytes that the host can address, of the kind
	// that Copy moves fastest: page-locked ones for a GPU. Otherwise it is as
	// Alloc.
	AllocHost(size int) (Buffer, error)
	// Free gives a Buffer that Alloc or AllocHost returned back to the arena:
	// work already enqueued on Compute may still use what Alloc returned, no
	// work what AllocHost did. Safe for concurrent use.
	Free(Buffer)

	// Compute is the stream that a program's own kernels run on.
	Compute() Stream
	// NewStream makes a stream beside Compute; a urgent one is served first
	// where the hardware can. Its owner closes it.
	NewStream(urgent bool) (Stream, error)

	// Kernels returns the operations that a program outside this module calls.
	Kernels() Kernels

	// Copy enqueues a copy of src to dst, of the same length: from Alloc's
	// memory to Alloc's or AllocHost's, or from AllocHost's to Alloc's. It
	// never waits; neither may be touched before an event behind it.
	Copy(s Stream, dst, src Buffer) error
	// CopyIn enqueues a copy of src to dst. src may be reused on return.
	CopyIn(s Stream, dst Buffer, src []byte) error
	// CopyOut copies src to dst after everything enqueued on s, and blocks
	// until it has.
	CopyOut(ctx context.Context, s Stream, dst []byte, src Buffer) error

	// Memory tells what Alloc's arena holds.
	Memory() MemoryStats
	// Close frees everything. No work may be in flight.
	Close() error
}

// Stream runs work in order.
type Stream interface {
	// Record marks the point behind everything enqueued so far.
	Record() Event
	// Mark is Record for an event whose time nobody will ask for, which may be
	// the zero Time for ever. On a GPU a time costs the stream some
	// microseconds, a mark nothing.
	Mark() Event
	// WaitFor makes what is enqueued from now on run after e. A stream that
	// runs work inline blocks the caller until e, or ctx, is done.
	WaitFor(ctx context.Context, e Event) error
	// Sync blocks the caller until everything enqueued has run.
	Sync(ctx context.Context) error
	// Close releases the stream; work in flight still completes.
	Close() error
}

// Event is a point in a stream.
type Event interface {
	// Done tells, without blocking, whether the point was reached. The error
	// is the device's, if it failed on the way.
	Done() (bool, error)
	// Sync blocks the caller until the point is reached.
	Sync(ctx context.Context) error
	// Time is when the point was reached, on the host's clock; the zero Time
	// before that, and where it is not known: see Stream.Mark.
	Time() time.Time
}

// MemoryStats counts a device's memory, in bytes.
type MemoryStats struct {
	InUse  int64 // allocated and not freed
	Peak   int64 // the most that was ever in use
	Cached int64 // freed, kept for the next allocation
	Allocs int64 // calls that reached the device because no cached block fitted
}

// Held is how many bytes of the device's memory the arena holds.
func (m MemoryStats) Held() int64 { return m.InUse + m.Cached }
