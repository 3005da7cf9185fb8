// Package device is the ground that computation stands on: memory, streams,
// events and one set of kernels, with an implementation per kind of device
// (device/cpu, device/cuda). Nothing above this package knows which one it
// runs on.
//
// # Values
//
// A [Buffer] is a range of a device's memory. A [Tensor] is a dense, row-major
// array over a Buffer: what kernels and collectives take. Both are plain
// values that own nothing; slicing them is free. Who allocated the memory
// frees it, and a Buffer carries a reference that keeps its mapping alive for
// as long as the Buffer is reachable, so reading a stale value is never a
// segmentation fault.
//
// # Order
//
// Work is enqueued on a [Stream] and runs in order. A device that has no
// queue of its own (the CPU) runs it inline, on the caller's goroutine,
// before the call returns; its events are then complete when they are made.
// An [Event] marks a point in a stream; other streams, and hosts, wait for it.
// Where only the order matters it is made by Mark, where it ends a span of a
// trace by Record.
//
// A device is driven by one goroutine at a time, with the exception of
// Alloc, AllocHost, Free, NewStream and the copies, which any goroutine may
// call.
//
// # Kernels
//
// [Kernels] is the one list of operations. A kernel that may write a
// gradient takes an [Accum]: dst = Alpha·value + Beta·dst, so that a gradient
// is written where it belongs (Beta 0), added to (Beta 1), or averaged over
// ranks by its last write (both 1/N), without a pass of its own. With Beta 0
// dst is never read: it may hold NaN.
//
// An operand that is documented as a scalar may have any shape of one element.
//
// A program adds kernels of its own by [Module]: a Go function for the CPU, and CUDA C++,
// which the GPU's driver compiles at the first launch. autograd.Apply makes them
// differentiable operations.
//
// # Errors
//
// Shapes, dtypes and ranges that do not fit are programming errors and panic
// with a [*ShapeError], [*DTypeError] or [*IndexError]. What the world can do to a correct
// program, such as running out of memory, is an error.
package device
