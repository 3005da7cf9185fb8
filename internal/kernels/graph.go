package kernels

import (
	"context"
	"fmt"

	"github.com/goddp/goddp/device"
)

// Recorder is a device that can capture work in a graph and launch the graph with one call.
type Recorder interface {
	// Record calls f and returns a graph of the work that f enqueued on Compute, and on streams
	// that f made wait for Compute and that Compute then waited for. The work does not run. Record
	// first waits until Compute is idle, or until ctx ends.
	//
	// Within f, the calling goroutine allocates from memory that belongs to the graph; Free returns it
	// to the graph. It must not wait for the device, nor copy from host memory, because a launch of the
	// graph would not repeat that: these calls return a [*RecordError], and so does Record. Events that
	// f records count as complete when Record returns.
	//
	// If like is not nil, it is a graph of this device, and the new graph uses the same memory. The
	// two graphs then overwrite each other's results.
	//
	// If f returns an error or panics, so does Record, and nothing is recorded.
	Record(ctx context.Context, like Graph, f func() error) (Graph, error)
	// Recording reports whether the calling goroutine is within Record.
	Recording() bool
	// AllocOutside returns size bytes outside any graph's memory, even within Record, so no graph
	// reuses them for its own allocations. Free releases them.
	AllocOutside(size int) (device.Buffer, error)
}

// RecordError is the error of a call that cannot be recorded.
type RecordError struct {
	Device string
	Call   string // "a wait for the GPU"
}

func (e *RecordError) Error() string {
	return fmt.Sprintf("%s: %s cannot be recorded in a graph", e.Device, e.Call)
}

// Graph is recorded work.
type Graph interface {
	// Launch enqueues the work on Compute. It returns an error after Revoke.
	Launch() error
	// Revoke frees the graph except for its memory, without waiting. Launches that were enqueued before
	// still run. Any goroutine may call it, but not during Launch.
	Revoke() error
	// Close frees the graph. Launches that were enqueued before still run. The memory returns to the
	// device's allocator when all graphs that share it are closed. Buffers that f allocated and the
	// program has not freed yet return when they are freed.
	Close() error
}
