// Package cuda implements [device.Device] on an NVIDIA GPU: CUDA streams and events, device memory in a
// caching arena, this package's own kernels, and cuBLAS's matrix products. It needs Linux, cgo and a
// GPU of compute capability 8.0 or newer; without them [Open] and [Count] return an error. Building
// needs no CUDA toolkit.
//
// # Libraries
//
// The package opens libcuda, libcublasLt and libnvrtc at run time, and libcudnn at the first convolution or 16-bit
// attention with gradients. GODDP_LIBCUDA, GODDP_LIBCUBLASLT, GODDP_LIBNVRTC and GODDP_LIBCUDNN name the file of a
// library; if the variable is set, nothing else is searched. Otherwise the package searches the loader's path,
// CUDA_HOME, CUDA_PATH and /usr/local/cuda, and NVIDIA's packages of a Python environment. The error for a missing
// library lists the places that were searched. libcudnn is optional.
//
// # Contexts and threads
//
// A device uses the GPU's primary context, as CUDA's libraries do. The current context is a thread property, and
// goroutines move between threads. So each driver call first makes the context current if needed, in the same cgo
// call. Driver calls are faster from a goroutine locked to its thread, because of warmer CPU caches. A process may
// open several devices and use each from a different goroutine. Package comm/internal/nccl needs raw handles:
// gpuDevice.Context, gpuStream.Handle, the handles that gpuStream.Enqueue passes to a function, and those that
// gpuDevice.Compile returns.
//
// # Waiting
//
// The package never blocks inside the driver, because such a wait has no deadline. A wait polls an event with
// back-off until its context ends. This includes the wait before memory is released to the driver, whose own call
// would wait for all work in flight.
//
// An event made by Record has a time on the host's clock. An event made by Mark has none and costs the stream
// nothing. Once a stream has passed an event, it reuses the CUevents of that event and of all earlier ones, whether
// or not the program still holds the old events. So reuse does not depend on Go's garbage collector, which rarely
// runs in a program that allocates little.
//
// # Memory
//
// Alloc and Free use a caching arena over the driver's memory. Alloc may return a freed block at once, because on the
// compute stream the work of the new user runs after the work of the old user. A program that used a block on another
// stream must make the compute stream wait for that stream before it frees the block. AllocHost returns pinned memory,
// which Copy transfers asynchronously. CopyIn and CopyOut stage through pinned chunks; CopyIn returns when the source
// has been staged.
//
// Each stream on which a sum, a loss or a matrix product is enqueued has 32 MiB of scratch memory,
// which Memory does not count.
//
// # Graphs
//
// The device is a kernels.Capturer: work on its streams can be captured in a CUDA graph and launched again with one
// call. The capture mode is relaxed: the device itself rejects the calls that a graph cannot repeat, and the calls
// that other modes forbid (allocating memory, and querying events outside the capture) are harmless here. The
// capturing goroutine is locked to its thread. By the thread Alloc knows that the memory is for the graph. A graph has a
// separate arena, which takes blocks from the device's arena and keeps them until the graph is closed. So addresses
// in the graph stay valid, and nothing else uses them between two launches.
//
// # Errors
//
// A call that fails returns an [*Error] with the device, the call, the code and the code's name. CUDA cannot recover
// from some errors, such as an illegal address. After the first such error the device is lost: the error is logged,
// and every later call returns it as a [*LostError] without calling CUDA. Because kernels run asynchronously, the
// error surfaces in a later call; compute-sanitizer finds the kernel that caused it.
//
// # Kernels
//
// NVRTC compiles the sources in the folder kernels for the GPU. The machine code is cached in goddp/kernels in the
// user's cache folder, which must belong to the user and have mode 0700. One process per host compiles; the others
// wait for it. Open loads all kernels.
//
// All kernels support Float32, Float64, Float16 and BFloat16, unless device.Kernels says otherwise. The 16-bit types
// are computed in float32 and rounded once, at the end. Sums and losses accumulate in float64, in an order that
// depends only on the shapes. The only atomic additions are those of Hash, on integers. So equal calls on equally
// aligned operands give bit-identical results on any GPU. Labels are not checked on the host: a label out of range
// makes the loss NaN.
//
// A custom [device.Module] is compiled and cached in the same way, at the first launch of one of its kernels. That
// launch loads all kernels of the module for one floating-point type. So if the forward and backward kernels are in
// one module, the backward pass, which overlaps collectives, loads nothing.
//
// # Matrix products
//
// cuBLASLt computes matrix products. Float32 is multiplied in float32 unless Options.AllowTF32 is set; the 16-bit
// types accumulate in float32. A Linear's bias is fused into the product's epilogue if cuBLAS has a fast kernel for
// that. ReLU is not, because some of cuBLAS's 16-bit kernels turn NaN into 0. In a FeedForward of a 16-bit type, the
// tanh approximation of GELU is fused into the first product, and its derivative into the product of the backward
// pass. In float32 cuBLAS's GELU has errors of 4e-4, so a separate kernel computes it.
//
// cuBLAS's heuristic proposes several algorithms for each shape, type and alignment. The first large product of a shape
// runs those that split the inner dimension as the first one does, compares the bits of their results with its, and times
// those that agree. Later products, also captured ones, use the fastest. Two runs may choose different algorithms, but
// get the same results: in all shapes tried, equally split algorithms had the same bits. If the first product of a shape is
// zero, its bits show nothing, and the next product of the shape tries again. If it is all NaN, its bits show nothing
// either, but the choice is made. Products of fewer than 4e9 operations use the first algorithm. So do all shapes that come
// after 64 such attempts. Enqueueing a product of a known shape allocates nothing.
//
// # Attention
//
// The package has attention kernels for every type. In training, cuDNN 9.10.2 or newer computes 16-bit attention,
// with or without a causal mask, and its gradients, 1.4 to 2.1 times as fast. The first call with gradients for a
// shape builds cuDNN's plans, which takes tenths of a second, or seconds if cuDNN compiles a kernel. It also compares
// the results of cuDNN and of goddp's kernels on a batch of random numbers, because some versions of cuDNN compute
// wrong gradients for some shapes. goddp's kernels compute everything else:
//
//   - attention in float32 and float64, and attention with an arbitrary mask;
//   - shapes that were not yet used with gradients, such as in text generation, and shapes after the 64th;
//   - shapes that cuDNN rejects or computes wrongly, which are logged at level info;
//   - gradients that are accumulated, and gradients of only q, k or v.
//
// cuDNN computes the gradients with its deterministic kernel. Options.Nondeterministic selects the nondeterministic
// one, which makes a step of GPT-2 3 % faster (docs/results/models.md). The deterministic kernel needs two bytes of
// scratch memory per pair of query and key. If the whole batch needs more than 512 MiB, the batch is split. With 64
// sequences the split pass takes 14 % longer. With GODDP_LIBCUDNN=none goddp's kernels compute all attention.
//
// # Convolutions
//
// cuDNN 9.10.2 or newer computes convolutions in float32 and the 16-bit types, and their gradients. This package's
// im2col kernels compute the rest: float64, shapes first seen during a graph capture, shapes for which there is too
// little scratch memory, and shapes that cuDNN rejects, which are logged at level info. Only deterministic cuDNN
// kernels that accumulate in float32 are used. Kernels with TF32 are used only if Options.AllowTF32 is set. The
// first call for a shape builds the plan for the result and, if it records gradients, the plans for the gradients
// (PrepareConv2d). If memory is short, a later call builds them. Options.TuneConvolutions times up to six cuDNN
// kernels for each plan.
// The 16-bit kernels are written for channels last; with channels first, cuDNN copies the operands.
// Images with fewer than eight channels, such as RGB input, are folded before the convolution: with strides of 2,
// each block of 2 x 2 pixels becomes one pixel with the channels of all four.
//
// # Loading of kernels
//
// CUDA loads kernels lazily, and loading can wait for all work in flight while it holds the context's lock. If that
// work includes a collective that waits for a peer, the host would hang, and could not even abort the collective.
// Therefore Open loads all of this package's kernels, by getting their handles. Callers of gpuDevice.Compile must
// also call it before the first collective. cuBLAS loads kernels at the first product of a shape. In a forward pass, that
// is before the step's first collective, except in stage 3 of package ddp/zero. For the backward pass, the first Linear of
// a shape that records gradients runs the products of its gradients once, in scratch memory (PrepareLinearGrad). A plain
// MatMul is not prepared. Attention and the gradients of a convolution are prepared before their forward pass
// (PrepareAttention, PrepareConv2d).
package cuda
