package device

import (
	"context"
	"time"
)

// The types of devices, as PyTorch's device.type.
const (
	CPU  = "cpu"
	CUDA = "cuda"
)

// Device is a compute device with its memory: the host's cores, or one GPU.
type Device interface {
	// String returns the device's name: "cpu", "cuda:1".
	String() string
	// Type returns [CPU] or [CUDA], the part of the name before the colon.
	Type() string

	// Alloc returns size bytes of the device's memory from its caching allocator, aligned to
	// [Align]. Their content is undefined. The error is an [*OutOfMemoryError]. Alloc is safe for
	// concurrent use.
	Alloc(size int) (Buffer, error)
	// AllocHost is like Alloc, but for host memory that Copy transfers fastest: for a GPU, pinned
	// memory.
	AllocHost(size int) (Buffer, error)
	// Free returns a Buffer to the allocator. Work that was enqueued on Compute before Free may
	// still use a Buffer of Alloc, but not a Buffer of AllocHost. Free is safe for concurrent use.
	Free(Buffer)

	// Compute returns the stream that kernels run on.
	Compute() Stream
	// NewStream creates a stream. If the hardware has stream priorities, an urgent stream has the
	// highest. The caller must close the stream.
	NewStream(urgent bool) (Stream, error)

	// Kernels returns the operations that programs call directly.
	Kernels() Kernels

	// Copy enqueues a copy of src to dst, which have the same length. At least one of them must be
	// from Alloc; the other may be from AllocHost. Copy never blocks. The caller must not access
	// either Buffer before an event recorded after Copy is complete.
	Copy(s Stream, dst, src Buffer) error
	// CopyIn enqueues a copy of src to dst. The caller may reuse src when CopyIn returns.
	CopyIn(s Stream, dst Buffer, src []byte) error
	// CopyOut waits until everything enqueued on s has run, copies src to dst, and returns.
	CopyOut(ctx context.Context, s Stream, dst []byte, src Buffer) error

	// Memory returns statistics of Alloc's memory.
	Memory() MemoryStats
	// Close frees all memory and streams of the device. No work may be in flight.
	Close() error
}

// Stream runs work in order.
type Stream interface {
	// Record returns an event for the point after everything enqueued so far.
	Record() Event
	// Mark is like Record, but the event's Time may always be the zero Time. On a GPU, a timed
	// event costs the stream some microseconds; an event of Mark costs nothing.
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
	// Time returns when the event became complete, on the host's clock. It is the zero Time before
	// that, and for untimed events: see Stream.Mark.
	Time() time.Time
}

// MemoryStats are statistics of a device's memory, in bytes.
type MemoryStats struct {
	InUse  int64 // allocated and not freed
	Peak   int64 // the maximum of InUse so far
	Cached int64 // freed, but kept for later allocations
	Allocs int64 // the number of allocations that the cache could not serve
}

// Held returns how many bytes of the device's memory the allocator holds.
func (m MemoryStats) Held() int64 { return m.InUse + m.Cached }
