// Package cpu is the host's cores as a [device.Device]: Go memory, streams
// that run their work inline, and kernels for float32 and float64.
//
// # Streams
//
// A kernel has run when its call returns. An event is complete when it is
// made, and waiting for another device's event blocks the caller.
//
// # Numbers
//
// Elementwise kernels compute in the operands' own type; exponentials and
// their like in float64, rounded once. Sums, losses and softmax accumulate in
// float64. Large operands are split over Options.Threads goroutines which end
// before the call does, at bounds that depend on the shapes alone: results
// depend neither on scheduling nor on the number of threads. (Matrix products
// are the library's: for OpenBLAS they are repeatable at a fixed number of
// threads.)
//
// # Matrix products
//
// Matrix products run in OpenBLAS where it is found at run time, and in
// gonum's pure Go kernels elsewhere, which reach about a tenth of the speed per core;
// falling back is logged once per device. GODDP_OPENBLAS names the library to
// load. OpenBLAS counts its threads per process: the last device made sets
// them. gonum runs on all of GOMAXPROCS, and takes 0·NaN for 0 in a product.
//
// # Half types
//
// Fill, Copy and Hash take every element type, NonFinite, Axpby and the optimizers'
// steps every floating-point one, but for NonFinite by way of float32. Nothing else
// computes in Float16 or BFloat16 here: a *device.DTypeError says so.
package cpu
