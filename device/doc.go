// Package device defines the interface to a compute device: memory, tensors, streams, events, and
// custom kernels. Packages device/cpu and device/cuda implement it. Packages that use device do not
// depend on the implementation.
//
// # Values
//
// A [Buffer] is a range of a device's memory. A [Tensor] is a dense, row-major array over a
// Buffer; kernels and collectives take Tensors. Both are plain values that own nothing, and
// slicing them costs nothing. The code that allocates memory also frees it. A Buffer keeps its
// mapping alive for as long as the Buffer is reachable, so reading a stale Buffer never causes a
// segmentation fault.
//
// # Order
//
// Work is enqueued on a [Stream], which runs it in order. The CPU has no queue: its streams run
// work inline, on the caller's goroutine, before the call returns, and its events are complete from
// the start. An [Event] marks a point in a stream; other streams and the host wait for it. Mark
// creates an event that only orders work. Record creates a timed event, such as for the end of a
// span in a trace.
//
// One goroutine at a time may use a device, except for Alloc, AllocHost, Free, NewStream and the
// copies, which are safe for concurrent use.
//
// # Kernels
//
// [Kernels] are the operations that programs call directly. Operations that can write a gradient
// take an [Accum]: dst = Alpha·value + Beta·dst. With Beta 0 the gradient overwrites dst; with Beta 1 it is
// added. If Alpha and Beta are 1/N, the last write also averages over N ranks. With Beta 0, dst is never
// read, so it may hold NaN.
//
// An operand documented as a scalar may have any shape with one element.
//
// A program adds its own kernels with a [Module]: a Go function for the CPU, and CUDA C++ that is
// compiled at the first launch on a GPU. autograd.Apply makes them differentiable operations.
//
// # Errors
//
// Mismatched shapes and types, and invalid indices, are programming errors: they panic with a
// [*ShapeError], a [*DTypeError] or an [*IndexError]. Errors that a correct program can encounter,
// such as running out of memory, are returned.
package device
