// Package autograd computes gradients by recording, as a program runs, which
// operation made which value (a graph without any compilation), and walking
// that record backwards. All arithmetic is done by a device's kernels.
//
// A [Variable] is a handle to a tensor on a [device.Device]. The program makes
// leaves ([Scalar], [FromSlice], [Zeros], ...); operations ([Add], [Linear],
// [MSELoss], ..., and a program's own by [Apply]) make results. A leaf that
// [Variable.RequireGrad] was called on gets gradients:
//
//	w := autograd.Scalar(dev, 5).RequireGrad()
//	y := autograd.Mul(w, autograd.Scalar(dev, 3))
//	err := y.Backward()
//	fmt.Println(w.Grad().Item()) // 3
//
// A device, and all variables on it, are used by one goroutine at a time.
// There is no package-level state: what autograd remembers hangs on the
// device, so that several devices can be driven by as many goroutines.
//
// # Operations of a program's own
//
// A [Function] is an operation: the shape of its result, what computes it, and what
// computes the gradient of each input. [Apply] calls it as the operations of this
// package are called. It enqueues kernels of [device.Kernels], or kernels that the program
// wrote itself, in Go for the CPU and in CUDA C++ for GPUs ([device.Module]):
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
// An operation computes the gradient of each of its inputs into a place that
// it is given. For a leaf that is where the leaf's gradient lives: the first
// write after [Variable.ZeroGrad] overwrites what is there, later ones add to
// it, and no pass of its own zeroes, copies or scales a gradient. By default
// autograd owns that place; a [GradSink] (a distributed reducer, whose buckets
// gradients are views of) takes it over, is told in the middle of the backward
// pass when its gradient is final, and can have a factor folded into the last
// write. The gradient of a result is temporary memory, freed as soon as it was
// passed on.
//
// A backward pass visits results in the reverse order of their making, so it
// is the same on every run. It releases the graph; [RetainGraph] keeps it.
//
// # Views
//
// Tensors are dense and row-major. [Reshape], [Flatten] and a [Slice] of leading rows
// share the memory of what they are of; [Permute], [Transpose], other slices, [Concat],
// [Stack] and [Expand] copy. An axis that is negative is counted from the end, as in
// PyTorch.
//
// # Indices and masks
//
// Indices ([IndexSelect], [Gather], [Embedding]) are int64, and masks ([Where],
// [MaskedFill]) uint8, as comparisons make them. Neither has a gradient. An index out of
// range is a panic with a [*device.IndexError] on the CPU; a GPU, which cannot tell the
// host, makes the elements NaN.
//
// # Lifetimes
//
// Leaves belong to the program: their memory is freed when the collector finds
// that nothing refers to them, or by [Variable.Free]. The collector is asked to look
// before leaves that were dropped take more memory than those in use, or than some MiB:
// 4 where that costs less than a fiftieth of the time, 64 in any case.
// What operations make
// belongs to the step that they are part of, because a training loop makes the
// same things over and over and a device's memory cannot wait for a collector:
//
//	for step := range steps {
//		loss := nn.MSELoss(model.Forward(x), y)
//		if err := loss.Backward(); err != nil {
//			return err
//		}
//		if err := opt.Step(); err != nil {
//			return err
//		}
//		opt.ZeroGrad()
//		fmt.Println(step, loss.Item())
//	}
//
// A step ends by one rule: after a Backward, the first operation that uses
// nothing made in that step, be it a result or a gradient, begins the next one
// and frees what the last one made. In the loop that is the first layer of the
// next model.Forward: until then loss is there to be read. What is to live longer is retained
// ([Variable.Retain]), or read. Using a freed variable panics with a
// [*FreedError] that says where it was freed.
//
// Code without a Backward, such as an evaluation, ends no step: it belongs in
// [NoGrad], which also records nothing, or in [Scope]. Both free what was made
// inside, and not retained, when they return.
//
// Within a step, what the operations of a model make is kept for the backward
// pass. [Checkpoint] keeps the ends of a part of the model only, and computes
// the rest of it again when the pass comes there.
//
// # In-place writes
//
// The backward of an operation reads the operation's operands where they are, and an
// optimizer's Step writes parameters in place. So each variable's memory has a version
// ([Variable.Version]), which counts the writes. A recorded operation notes the versions
// of its operands. If its backward would read an operand that was written since,
// [Variable.Backward] panics with a [*ModifiedError] and changes no gradient. With two
// optimizers the order of steps matters: the discriminator's Step comes before the
// forward pass that the generator's loss is computed from.
//
//	fake := generator.Forward(noise)
//	... Backward and Step of the discriminator's loss, of fake.Detach()
//	loss := score(discriminator.Forward(fake))
//	err := loss.Backward()
//
// Only what a backward reads counts. The terms of a sum may be written, and a factor if
// the other one needs no gradient. [Saver] says so of a program's own operation. Of a
// function given to [Checkpoint] all operands count. Optimizers, ddp and nn.LoadState
// count their writes. A program that writes a variable's memory by a kernel, a copy or a
// collective of its own calls [Variable.BumpVersion] first.
//
// Gradients are written by backward passes. An operation whose backward would read a
// gradient keeps a copy of it.
//
// # Errors
//
// Operands that do not fit are programming errors and panic, with a
// [*device.ShapeError], [*device.DTypeError], [*DeviceError] or [*GraphError].
// When a correct operation fails, because the device is out of memory or
// broken, its result holds the error instead of a value ([Variable.Err]), and
// so does all that is computed from it, until [Variable.Backward],
// [Variable.Read] or [Variable.TryItem] returns it: a forward pass needs no
// error handling of its own.
package autograd
