// Package cuda implements [device.Device] on an NVIDIA GPU: CUDA streams and events, device memory in a
// caching arena, this package's own kernels, and cuBLAS's matrix products. It needs Linux, cgo and a
// GPU of compute capability 8.0 or newer; without them [Open] and [Count] return an error. Building
// needs no CUDA toolkit.
//
// # Libraries
//
// The package opens libcuda, libcublasLt and libnvrtc at run time, and libcudnn when a program first
// computes a convolution, or attention in 16 bits that records gradients. If the environment variable GODDP_LIBCUDA,
// GODDP_LIBCUBLASLT, GODDP_LIBNVRTC or GODDP_LIBCUDNN is set, the library is that file and is searched
// nowhere else. Otherwise it is searched on the loader's path, in CUDA_HOME, CUDA_PATH and
// /usr/local/cuda, and among NVIDIA's packages of a Python environment. The error for a missing library
// lists the places that were searched. libcudnn may be missing.
//
// # Contexts and threads
//
// A device uses the GPU's primary context, as CUDA's libraries do. The current context is a property
// of a thread, and goroutines move between threads. So each call of the driver makes the context
// current, if it is not, in the same C call. A goroutine that is locked to its thread finds the driver's
// data in its processor's caches more often. A process may open several devices and drive each from a
// goroutine. Package comm/internal/nccl needs raw handles: gpuDevice.Context, gpuStream.Handle,
// the handles that gpuStream.Enqueue passes to a function, and those that gpuDevice.Compile returns.
//
// # Waiting
//
// The package never waits inside the driver, because such a wait has no deadline. A wait polls an
// event, less and less often, until its context ends. This includes the wait before memory is released
// to the driver, whose own call would wait for all work in flight.
//
// An event made by Record has a time on the host's clock. An event made by Mark has none and costs the
// stream nothing. A stream reaches its events in order. When the stream is known to have passed an event,
// the stream records the CUevents of that event and of all earlier ones again for new events, whether or
// not the program still holds the old events. So CUevents do not wait for Go's garbage collector, which
// seldom runs in a program that allocates little.
//
// # Memory
//
// Alloc and Free use a caching arena over the driver's memory. Alloc may return a freed block at once,
// because the new user's work runs after the old user's on the compute stream. A program that used the
// block on another stream must first make the compute stream wait for that stream. AllocHost returns
// page-locked memory, which Copy transfers without the host. CopyIn and CopyOut copy through pieces of
// page-locked memory; CopyIn returns when the source is in such pieces.
//
// Each stream on which a sum, a loss or a matrix product is enqueued has 32 MiB of scratch memory,
// which Memory does not count.
//
// # Graphs
//
// The device is a kernels.Recorder: work on its streams can be captured in a CUDA graph and run again by
// one call. The capture's mode is relaxed, because the device itself refuses the calls that a graph
// cannot repeat, and the calls that CUDA's other modes forbid, to allocate memory and to query events that
// were not captured, are harmless here. The goroutine that records is locked to its thread, by which
// Alloc knows that the memory is for the graph. A graph allocates in an arena of its own, which takes
// blocks from the device's arena and keeps them until the graph is closed. So addresses in the graph stay
// valid, and nothing else uses them between two launches.
//
// # Errors
//
// A call that fails returns an [*Error] with the device, the call, the code and the code's name. CUDA
// does not recover from some errors, such as an access to an illegal address. The first such error ends
// the device and is logged. Every later call returns it as a [*LostError], without calling CUDA. Kernels
// run after the calls that launch them, so a later call notices the error; compute-sanitizer finds the
// kernel that caused it.
//
// # Kernels
//
// NVRTC compiles the sources in the folder kernels for the GPU. The machine code is kept in
// goddp/kernels in the user's cache folder, which must belong to the user and have mode 0700. One of a
// host's processes compiles; the others wait for it. Open loads all kernels.
//
// All kernels compute in Float32, Float64, Float16 and BFloat16, unless device.Kernels says otherwise.
// The 16-bit types are computed in float32 and rounded once, at the end. Sums and losses accumulate in
// float64, in an order that depends on the shapes alone. The only atomic additions are those of Hash,
// which are of integers. So equal calls on equally aligned operands give equal bits on any GPU. The host
// cannot see labels on the device: a label out of range makes the loss NaN.
//
// A program's own [device.Module] is compiled and kept in the same way, at the first launch of one of its
// kernels. That launch loads all kernels of the module for one floating-point type. So if the forward and
// backward kernels are in one module, the backward pass, which runs beside collectives, loads nothing.
//
// # Matrix products
//
// cuBLASLt computes matrix products. Float32 is multiplied in float32 unless Options.AllowTF32 is set; the
// 16-bit types accumulate in float32. A Linear's bias is part of the product's kernel where
// cuBLAS has a fast kernel for that. ReLU is not, because some of cuBLAS's 16-bit kernels turn NaN into
// 0. Between the two Linears of a FeedForward, the tanh approximation of GELU of the 16-bit types is part
// of the first product, and its derivative of the product in the backward pass. Of float32, cuBLAS
// computes it with errors of 4e-4, so a pass of its own follows the product. The way to compute a product is
// chosen once for each shape, type and alignment: by cuBLAS's estimate, or by timing if Options.TuneMatMul is
// set. TuneMatMul also decides whether a bias's gradient is computed in its weight's product or as a separate
// sum, and keeps its results beside the compiled kernels. Products are never timed while a graph is captured,
// and enqueueing a product of a known shape allocates nothing.
//
// # Attention
//
// The package has its own kernels for attention, of every type. In training, cuDNN 9.10.2 or newer computes
// attention of 16-bit types, with or without a causal mask, and its gradients, 1.4 to 2.1 times as fast. The
// first application of a shape that records gradients makes cuDNN's plans for it, which takes some tenths of a
// second, and seconds if cuDNN compiles a kernel. It also computes one batch of random numbers both by cuDNN and
// by goddp's kernels, and compares them, because some versions of cuDNN compute wrong gradients for some shapes.
// goddp's kernels compute everything else:
//
//   - attention of float32 and float64, and attention with a mask of the program's own;
//   - shapes that had no application with gradients yet, such as those of generated text, and the 65th shape
//     and later ones;
//   - shapes that cuDNN refuses or computes wrongly, which the device logs at level info;
//   - gradients that are added to others, and gradients of q, k or v alone.
//
// cuDNN computes the gradients by its deterministic kernel. Options.Nondeterministic selects its other kernel,
// with which a step of GPT-2 takes 3 % less time (docs/results/models.md). The deterministic kernel needs scratch memory of two
// bytes for each product of a query and a key. If that would be more than 512 MiB for the whole batch, the batch is
// computed in parts, which takes another 14 % at 64 sequences. With GODDP_LIBCUDNN=none goddp's kernels compute all
// attention.
//
// # Convolutions
//
// cuDNN 9.10.2 or newer computes convolutions of float32 and the 16-bit types and their gradients. This package's
// own kernels, which write columns and multiply matrices, compute those of float64, those that are first seen
// while a graph is captured, those for which cuDNN lacks scratch memory, and those that cuDNN refuses, which the
// device logs at level info. Only kernels of cuDNN are used that add in float32 and give the same bits in each run;
// with float32 also only those without TF32, unless Options.AllowTF32 is set. The first application of a shape makes
// the plan for the result and, if it records gradients, those for the gradients (PrepareConv2d); if memory is
// lacking for that, a later one does. Options.TuneMatMul times up to six of cuDNN's kernels
// for each, as for products. In 16-bit types the kernels are made for channels that are the last axis. If the
// channels come first, cuDNN copies the operands. Images of fewer than eight channels, such as the three colors of a
// network's first layer, are folded before the convolution: with strides of 2, each block of 2 x 2 pixels becomes one
// pixel with the channels of all four.
//
// # Loading of kernels
//
// CUDA loads kernels lazily, and loading can wait for all work in flight while it holds the context's
// lock. If that work includes a collective that waits for a peer, the host would stop, and could not even
// abort the collective. Therefore Open loads all of this package's kernels: the driver loads a kernel when
// it is asked for the kernel's handle. Users of gpuDevice.Compile also call it before the first collective.
// cuBLAS loads a kernel at the first product that uses it. For a forward pass that happens before the
// step's first collective. For the backward pass, the first Linear of a shape that records gradients
// computes the products of its gradients once, in scratch memory (PrepareLinearGrad). A plain MatMul is
// not prepared. Attention is prepared before its forward pass (PrepareAttention), the gradients of a
// convolution too (PrepareConv2d).
package cuda
