package kernels

import (
	"context"
	"fmt"

	"github.com/goddp/goddp/device"
)

// Capturer is a device that can capture work in a graph and launch the graph with one call.
type Capturer interface {
	// Capture calls f and returns a graph of the work that f enqueued on Compute. The graph includes
	// work on other streams, if f made these streams wait for Compute, and Compute wait for them
	// afterwards. The work does not run. Capture first waits until Compute is idle, or until ctx ends.
	//
	// Within f, the calling goroutine allocates from memory that belongs to the graph; Free returns
	// memory to the graph. The goroutine must not wait for the device, nor copy from host memory,
	// because a launch of the graph would not repeat this. Such calls return a [*CaptureError], and then
	// Capture returns one too. Marks that f makes count as complete when Capture returns.
	//
	// If like is not nil, it is a graph of this device, and the new graph uses the same memory. The
	// two graphs then overwrite each other's results.
	//
	// If f returns an error or panics, so does Capture, and nothing is captured.
	Capture(ctx context.Context, like Graph, f func() error) (Graph, error)
	// Capturing reports whether the calling goroutine is within Capture.
	Capturing() bool
	// AllocOutside returns size bytes outside any graph's memory, even within Capture, so no graph
	// reuses them for its own allocations. Free releases them.
	AllocOutside(size int) (device.Buffer, error)
}

// CaptureError is the error of a call that cannot be captured.
type CaptureError struct {
	Device string
	Call   string // "a wait for the GPU"
}

func (e *CaptureError) Error() string {
	return fmt.Sprintf("%s: %s cannot be captured in a graph", e.Device, e.Call)
}

// Graph is captured work.
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
