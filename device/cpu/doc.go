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
// rounded once. Sums, losses and softmax accumulate in float64. Large operands are divided among
// Options.Threads goroutines, which end before the call returns. The division depends only on the shapes,
// so results depend neither on scheduling nor on the number of threads. OpenBLAS's products, oneDNN's
// convolutions and the gradients of attention are exceptions: they are reproducible only for a fixed number of threads.
//
// # Vector instructions
//
// For float32, these kernels use AVX-512, AVX2 with FMA, or arm64's vectors: Exp, Tanh, Sigmoid, SiLU, GELU, SwiGLU and
// ReLU with their gradients, the exponentials of softmax, attention and cross-entropy, max pooling, dropout, sums and
// AdamW. The functions have errors below 0.51 ulp (docs/results/numerics.md). Sizes of vectors do not change the bits.
// ReLU, max pooling, dropout and on amd64 AdamW compute the bits of the plain kernels, but sums do not. So ranks on
// different processors apply the same updates to equal gradients. The kernels are C, with gcc's vector types: Go's own vectors are an experiment, and assembly
// would be longer. A program without cgo, which cannot load OpenBLAS either, and other processors use plain Go kernels,
// which take several times as long.
//
// # Matrix products
//
// OpenBLAS computes matrix products if it is found at run time. Otherwise gonum's pure Go kernels do, at
// about a tenth of the speed per core, and each device logs that once. GODDP_OPENBLAS names the library to
// load. If OpenBLAS is older than the processor and would use kernels without AVX2, the device selects those of the
// best processor with the same instructions; OPENBLAS_CORETYPE overrides that. Each thread of the device computes a cell
// of a large result, so the number of threads of OpenBLAS is set to 1 for the whole process. gonum uses GOMAXPROCS threads,
// and computes 0·NaN as 0 in a product.
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
