// Package cuda is a GPU as a [device.Device]: CUDA streams and events, device
// memory behind a caching arena, kernels of this package's own and cuBLAS's
// matrix products. It needs Linux, cgo and a GPU of compute capability 8.0 or
// newer; elsewhere [Open] and [Count] say so. No CUDA toolkit is needed to
// build.
//
// # Libraries
//
// libcuda, libcublasLt and libnvrtc are opened at run time. Each is looked for
// in a file that a variable names (GODDP_LIBCUDA, GODDP_LIBCUBLASLT,
// GODDP_LIBNVRTC), and then nowhere else; on the loader's path; in CUDA_HOME,
// CUDA_PATH and /usr/local/cuda; among NVIDIA's packages of a Python
// environment. What is missing is an error that lists the places tried.
//
// # Contexts and threads
//
// A device works in the GPU's primary context, as every library of CUDA's
// does. Which context is current belongs to a thread, and goroutines move
// between threads: so each call into the driver makes the context current
// where it is not, in the same C call. A goroutine that is locked to its thread
// more often finds the driver's data in its processor's caches: comm.Init locks
// its caller. Several devices may be open at once, and driven by a goroutine
// each. What NCCL and its like need of a device are its raw handles:
// [gpuDevice.Context], [gpuStream.Handle], those that [gpuStream.Enqueue] lends, and those
// of kernels that [gpuDevice.Compile] makes.
//
// # Waiting
//
// Nothing waits inside the driver, where no deadline reaches: waits poll
// events, ever more rarely, until a context ends. That includes giving memory
// back to the driver, which would wait for all work in flight.
//
// An [gpuEvent] made by Record tells when it was reached on the host's clock; one
// made by Mark, which costs the stream nothing, does not. A stream reaches its
// events in order: once it is known to be past one, the CUevent behind it, and
// those behind the ones before, mark new points, whether or not anybody still
// holds the old. Nothing waits for Go's collector, which a program that
// allocates little seldom runs.
//
// # Memory
//
// Alloc and Free go to a arena.Arena over the driver's memory. A freed block
// may be handed out again at once, since its next user is behind its last one
// on the compute stream: whoever used it on another stream makes the compute
// stream wait for that first. AllocHost's memory is page-locked, which Copy moves
// without the host. CopyIn and CopyOut go through pieces of such memory; CopyIn
// returns when the source is staged.
//
// Each stream on which a sum, a loss or a matrix product is enqueued has 32 MiB
// of scratch memory, which Memory does not count.
//
// # Errors
//
// A call that fails is an [*Error]: the device, the call, the code and its
// name. Some errors CUDA does not recover from, such as an illegal address:
// the first ends the device, is logged, and is what every later call returns,
// as a [*LostError], without calling CUDA. Kernels run behind their calls, so
// it is noticed later than it happened; compute-sanitizer finds the kernel.
//
// # Kernels
//
// Kernels are compiled for the GPU found, by NVRTC, from the sources in the
// folder kernels, and kept in goddp/kernels in the user's cache folder, which
// must be the user's own and of mode 0700. The processes of a host compile
// them once: the first does, the others wait for it. Open loads all of them.
//
// All kernels compute in Float32, Float64, Float16 and BFloat16, but where
// device.Kernels says otherwise, the half types in float32 with one rounding at the
// end. Sums and losses accumulate in
// float64, in an order that depends on the shapes alone: there are no atomic
// additions but the hash's, which are of integers, and equal calls on equally
// aligned operands give equal bits, on any GPU. A label out of range, which the host cannot see, makes the loss NaN.
//
// A [device.Module] of a program's own is compiled and kept in the same way, at the first
// launch of one of its kernels. That loads all of its kernels, for one floating-point
// type: where forward and backward kernels are in one module, the backward pass loads
// nothing beside the collectives.
//
// # Matrix products
//
// Products are cuBLASLt's. Float32 is multiplied in float32 unless
// Options.AllowTF32 is set; the half types accumulate in float32. A Linear's
// bias and ReLU are part of the product's kernel where cuBLAS has one that
// keeps up. GELU is not: cuBLAS has the tanh approximation only, and a backward
// pass needs what GELU was applied to. How a product is computed is chosen once
// per shape, type and alignment: by cuBLAS's estimate, or by timing with
// Options.TuneMatMul, which also decides whether a bias's gradient comes from
// its weight's product or from a sum. Work that is being captured in a graph is
// never timed, and enqueueing allocates nothing once a shape was seen.
//
// # What is loaded when
//
// CUDA loads lazily, and loading can wait for all work in flight while it holds
// the context's lock: a collective that waits for a peer would then stop the
// host, and could not be aborted. This package's kernels are therefore all
// loaded by Open: the driver loads a kernel when it is asked for its handle. Who
// has Compile make kernels does so before the first collective as well.
// cuBLAS loads a kernel at its first product of a kind. For a forward pass that
// is before the step's first collective; the products of the backward pass are
// run once, on scratch memory, by the first Linear of a shape that records
// gradients (PrepareLinearGrad). A plain MatMul is not prepared.
package cuda
