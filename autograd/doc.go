// Package autograd computes gradients. It records which operation computed which value while a
// program runs, and a backward pass walks that record in reverse. There is no compilation. A
// device's kernels do all arithmetic.
//
// A [Variable] is a handle to a tensor on a [device.Device]. The program makes leaves ([Scalar],
// [FromSlice], [Zeros], ...). Operations ([Add], [Linear], [MSELoss], ..., and with [Apply] those of the
// program) make results. A leaf gets a gradient if the program called [Variable.RequireGrad]:
//
//	w := autograd.Scalar(dev, 5).RequireGrad()
//	y := autograd.Mul(w, autograd.Scalar(dev, 3))
//	err := y.Backward(nil)
//	fmt.Println(w.Grad().Item()) // 3
//
// One goroutine at a time uses a device and the variables on it. Autograd keeps its state with the
// device, not in package variables, so several goroutines can each use a different device.
//
// # Custom operations
//
// A [Function] is an operation. It states the shape of its result, computes the result, and computes
// the gradient of each input. [Apply] calls it as it calls the operations of this package. A Function
// enqueues operations of [device.Kernels], or kernels that the program wrote in Go for the CPU and in
// CUDA C++ for GPUs ([device.Module]):
//
//	func (SwiGLU) Forward(c *autograd.Call) error {
//		n, elements := c.Out.Shape[1], c.Out.Len()
//		return c.Kernels.Launch(c.Stream, forward, device.Flat(elements), c.Out, c.In[0], n, elements)
//	}
//
// examples/custom is a whole program with such an operation.
//
// # Gradients
//
// The backward pass tells an operation where to write the gradient of each input. For a leaf this is the
// leaf's gradient itself: the first write after [Variable.ZeroGrad] overwrites it and later writes add
// to it, so nothing else has to zero, copy or scale a gradient. Autograd owns the memory of a leaf's
// gradient, unless package ddp does: gradients are then views of its buckets. The backward pass notifies
// ddp as soon as the gradient is final, and multiplies the last write by a factor that ddp chooses. The
// gradient of a result is temporary memory, which the pass frees as soon as it has used it. The
// gradients of a sum's terms, and of the operand of a [Reshape], share the memory of the result's
// gradient instead of copying it.
//
// A backward pass visits results in the reverse order of their creation, so the order is the same in
// every run. The pass releases the graph unless [BackwardOptions] retain it.
//
// # Views
//
// Tensors are dense and row-major. [Reshape], [Flatten] and a [Slice] of leading rows return views:
// they share the memory of their input. [Permute], [Transpose], other slices, [Concat], [Stack] and
// [Expand] copy. A negative axis counts from the end, as in PyTorch.
//
// # Indices and masks
//
// Indices ([IndexSelect], [Gather], [Embedding]) are int64. Masks ([Where], [MaskedFill]) are uint8,
// the type that comparisons return. Neither has a gradient. An index out of range panics with a
// [*device.IndexError] on the CPU. On a GPU, where the host does not see indices, it makes the
// elements NaN.
//
// # Lifetimes
//
// Leaves belong to the program. Their memory is freed by [Variable.Free], or after the garbage
// collector finds that nothing refers to them. The garbage collector does not see device memory, so
// autograd runs it when unreachable leaves could occupy more memory than the reachable ones, and more
// than a minimum: 4 MiB if collections take less than a fiftieth of the time, otherwise 64 MiB.
//
// Results belong to the step in which they were made. A training loop makes the same results over and
// over, and waiting for the garbage collector would exhaust the device's memory:
//
//	for step := range steps {
//		loss := nn.MSELoss(model.Forward(x), y, nil)
//		if err := loss.Backward(nil); err != nil {
//			return err
//		}
//		if err := opt.Step(); err != nil {
//			return err
//		}
//		opt.ZeroGrad()
//		fmt.Println(step, loss.Item())
//	}
//
// A step ends after a Backward, at the first operation that uses no result and no gradient of that
// step. This operation starts the next step and frees the results of the previous one. In the loop it
// is the first layer of the next model.Forward, so the program can read loss until then. A result that
// must live longer has to be retained ([Variable.Retain]) or read. Using a freed variable panics with
// a [*FreedError], which names the place that freed it.
//
// Code without a Backward, such as an evaluation, does not end a step. Run it in [NoGrad], which records
// no operations, or in [Scope]. When these return, they free all results made inside that were not
// retained.
//
// Within a step, the results of a model's operations are kept for the backward pass. An operation may keep
// further memory besides its result. The pass frees that memory once it has computed the operation's gradients.
// [Checkpoint] keeps only the input and the output of a part of the model; the backward pass computes the rest again.
// [Variable.Recompute] frees the result of one cheap operation, and the backward pass computes it again.
//
// # Captured steps
//
// On a GPU, a step of short kernels takes longer to enqueue than to run. [Capture] wraps a function that
// makes one step: after some calls it captures the work that the step enqueues as a CUDA graph. From then
// on each call launches that graph. The results are the same bits.
//
// # In-place writes
//
// The backward of an operation reads the operation's operands, and an optimizer's Step writes
// parameters in place. So each variable's memory has a version ([Variable.Version]), which counts the
// writes. An operation on the tape notes the versions of its operands. If its backward would read an
// operand that was written since, [Variable.Backward] panics with a [*ModifiedError] and changes no
// gradient. With two optimizers the order of steps matters: the discriminator's Step comes before the
// forward pass that computes the generator's loss.
//
//	fake := generator.Forward(noise)
//	... Backward and Step of the discriminator's loss, of fake.Detach()
//	loss := score(discriminator.Forward(fake))
//	err := loss.Backward(nil)
//
// Only writes to operands that the backward reads matter. The terms of a sum may be written, and so may a factor
// if the other factor needs no gradient. [Saver] declares this for a custom operation. In a function given
// to [Checkpoint], writes to all operands matter. Optimizers, ddp and nn.LoadState count their writes. A program
// that itself writes a variable's memory, by a kernel, a copy or a collective, calls
// [Variable.BumpVersion] first.
//
// Backward passes write gradients. An operation whose backward would read a gradient keeps a copy of
// it.
//
// # Errors
//
// Operands that do not fit are programming errors. They panic with a [*device.ShapeError], a
// [*device.DTypeError], a [*DeviceError] or a [*GraphError]. If a correct operation fails, because the
// device is out of memory or broken, its result holds the error ([Variable.Err]), and so do all
// results computed from it. [Variable.Backward], [Variable.Read] and [Variable.TryItem] return that
// error, so a forward pass needs no error handling.
package autograd
