package device

import (
	"context"
	"time"
)

// Device is a processor with its memory: the host's cores, or one GPU.
type Device interface {
	// String returns the device's name: "cpu", "cuda:1".
	String() string

	// Alloc returns size bytes of the device's memory from its caching allocator, aligned to
	// [Align]. Their content is undefined. The error is an [*OutOfMemoryError]. Safe for
	// concurrent use.
	Alloc(size int) (Buffer, error)
	// AllocHost is Alloc for memory that the host can address and that Copy transfers fastest:
	// for a GPU, page-locked memory.
	AllocHost(size int) (Buffer, error)
	// Free returns a Buffer of Alloc or AllocHost to the allocator. Work that was enqueued on
	// Compute before Free may still use a Buffer of Alloc. No enqueued work may still use a
	// Buffer of AllocHost. Safe for concurrent use.
	Free(Buffer)

	// Compute returns the stream that kernels run on.
	Compute() Stream
	// NewStream makes a stream beside Compute. If the hardware has priorities, an urgent
	// stream runs first. The caller closes the stream.
	NewStream(urgent bool) (Stream, error)

	// Kernels returns the operations that a program calls directly.
	Kernels() Kernels

	// Copy enqueues a copy of src to dst, which have the same length. At least one of them is
	// memory of Alloc; the other may be memory of AllocHost. Copy never waits. The caller must
	// not touch either Buffer before an event that was made after Copy is complete.
	Copy(s Stream, dst, src Buffer) error
	// CopyIn enqueues a copy of src to dst. The caller may reuse src when CopyIn returns.
	CopyIn(s Stream, dst Buffer, src []byte) error
	// CopyOut waits until everything enqueued on s has run, copies src to dst, and returns.
	CopyOut(ctx context.Context, s Stream, dst []byte, src Buffer) error

	// Memory returns statistics of the memory that Alloc gives out.
	Memory() MemoryStats
	// Close frees all memory and streams of the device. No work may be in flight.
	Close() error
}

// Stream runs work in order.
type Stream interface {
	// Record returns an event for the point after everything enqueued so far.
	Record() Event
	// Mark is Record for an event whose Time is not needed; its Time may always be the zero
	// Time. On a GPU, a time costs the stream some microseconds and a mark costs nothing.
	Mark() Event
	// WaitFor makes work that is enqueued from now on run after e. It blocks the caller until e is
	// complete if the stream runs work inline, or if e is an event of another kind of device.
	WaitFor(e Event) error
	// Sync blocks the caller until everything enqueued has run.
	Sync(ctx context.Context) error
	// Close releases the stream. Work in flight still completes.
	Close() error
}

// Event is a point in a stream. It is complete once the stream has reached the point.
type Event interface {
	// Done reports, without blocking, whether the event is complete. It returns the device's
	// error if the device failed first.
	Done() (bool, error)
	// Sync blocks the caller until the event is complete.
	Sync(ctx context.Context) error
	// Time returns when the event became complete, on the host's clock. It is the zero Time
	// before that, and for events that have no time: see Stream.Mark.
	Time() time.Time
}

// MemoryStats are statistics of a device's memory, in bytes.
type MemoryStats struct {
	InUse  int64 // allocated and not freed
	Peak   int64 // the maximum of InUse so far
	Cached int64 // freed, kept for the next allocation
	Allocs int64 // allocations that the cache could not serve
}

// Held returns how many bytes of the device's memory the allocator holds.
func (m MemoryStats) Held() int64 { return m.InUse + m.Cached }
