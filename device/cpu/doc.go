// Package cpu implements [device.Device] on the host's cores, with Go memory, streams that run work
// inline, and kernels for float32 and float64.
//
// # Streams
//
// A kernel is complete when its call returns. Events are complete when they are created. Waiting for
// another device's event blocks the caller.
//
// # Numbers
//
// Elementwise kernels compute in the operands' type; exponentials and similar functions in float64,
// rounded once. Exp, Tanh, Sigmoid, SiLU, GELU, SwiGLU, and the exponentials of softmax, attention and cross-entropy
// use vector instructions: those of AVX2 and FMA, or of arm64. These kernels are C (vector.c), because gcc is there
// anyway: without cgo a program also lacks OpenBLAS, which matters far more. They compute in float64 too, with
// errors below 0.51 ulp of float32. AdamW uses vector instructions too, without fused ones on amd64, so ranks on
// different processors compute the same bits. Without cgo or on other processors the same functions are scalar Go, about ten
// times slower. Sums, losses and softmax accumulate in float64. Large operands are divided among
// Options.Threads goroutines, which end before the call returns. The division depends only on the shapes,
// so results depend neither on scheduling nor on the number of threads. OpenBLAS's products and oneDNN's
// convolutions are exceptions: they are reproducible only for a fixed number of threads.
//
// # Matrix products
//
// OpenBLAS computes matrix products if it is found at run time. Otherwise gonum's pure Go kernels do, at
// about a tenth of the speed per core, and each device logs that once. GODDP_OPENBLAS names the library to
// load. If OpenBLAS is older than the processor and would use kernels without AVX2, the device selects those of the
// best processor with the same instructions; OPENBLAS_CORETYPE overrides that. OpenBLAS has one thread count per
// process, set by the device that was created last. gonum uses GOMAXPROCS threads, and computes 0·NaN as 0 in a product.
//
// # Convolutions
//
// On amd64 oneDNN, version 2 or 3, computes convolutions in float32 and their gradients if it is found at the first
// one. Each thread of the device computes a part of the images, or of the channels, with one thread of oneDNN. Padding
// is left out, so an infinite weight times padding is not NaN. Otherwise, and in float64, this package's kernels compute
// convolutions as matrix products of copied images, and each device logs once that oneDNN is missing. GODDP_ONEDNN names
// the library to load, or is none. Channels last need no copies of images, and are as fast or up to twice as fast as
// channels first.
//
// # 16-bit types
//
// Fill, Copy and Hash work on every element type. NonFinite, Axpby and the optimizers' steps work on every
// floating-point type; Axpby and the steps convert 16-bit numbers to float32. All other kernels panic with
// a *device.DTypeError for Float16 and BFloat16.
package cpu
