// Package optim updates parameters from their gradients, with [SGD], [AdamW], [RMSProp] or [Muon].
//
//	opt, err := optim.NewSGD(model.Parameters(), &optim.SGDOptions{LR: 0.1, Momentum: 0.9})
//	if err != nil {
//		return err
//	}
//	for range steps {
//		... Backward ...
//		if err := opt.Step(); err != nil {
//			return err
//		}
//		opt.ZeroGrad()
//	}
//
// Options are one struct whose zero value is the default; nil is the zero value. A constructor returns
// an [*OptionError] for options that it cannot use. Each optimizer also takes parameter groups with
// separate options, as PyTorch's optimizers do. The program may change the options of a group between
// steps. Package optim/schedule has learning rate schedules.
//
// [ClipGradNorm] clips the gradients by their total norm, and [ClipGradValue] clips each element. Call
// them between Backward and Step.
//
// Step writes the parameters in place. If a graph was recorded before the step and its backward pass
// reads a parameter, that Backward panics with an [*autograd.ModifiedError]. A skipped step, or one
// that returns an error before it writes anything, does not invalidate graphs.
//
// # Custom optimizers
//
// Packages ddp, ddp/zero, amp, train and checkpoint take any [Optimizer]. Some of them need more:
// amp needs a [ScaledStepper], [EMA.With] needs a [ParameterSwapper], and package ddp/zero
// describes its own requirements (zero.Local).
//
// # 16-bit parameters
//
// The update of a 16-bit parameter is often smaller than the distance to the next representable
// number: 1/128 of the parameter in BFloat16, 1/1024 in Float16. Rounding then discards the update, in
// every step. With the option MasterWeights an optimizer keeps a Float32 copy of each 16-bit
// parameter, updates the copy, and rounds it into the parameter. This takes one pass. With SGD it
// reads and writes 6 more bytes per element (10 with momentum) and stores 4 more (6 with momentum).
// The copies are part of the State. They are initialized from the parameters at the first step, or
// from the values that nn.Cast has kept. A program that later overwrites parameters must
// restore the copies too.
//
// MasterWeights is off by default, so that a step uses the same memory and gives the same results as
// PyTorch's optimizer. PyTorch's own mixed precision keeps Float32 parameters and converts them in
// each forward pass; nn.LinearOptions.Compute does the same. [SGD.StepScaled] is for losses that are
// scaled for Float16: see package amp.
//
// # Which steps are committed
//
// A step normally changes all parameters or none. Before it writes anything, Step checks that every
// gradient may be used, and allocates the memory that it needs. If either fails, nothing has changed.
//
// On a GPU this may not be known yet, because other ranks have not reported whether they have their
// gradients. If one set of flags covers all gradients, Step enqueues the updates without waiting. It
// starts with the last parameters, whose gradients are reduced first. The update kernels read the
// flags on the device and write nothing if one is set. While they run, Step waits for the flags, and
// returns the error of that same step. All parameters are then unchanged.
//
// If a device or a process group fails after updates were enqueued, some parameters may be updated and
// others not. Step then returns an [*InconsistentError], and every later call returns it too, until
// the program has loaded a consistent state and has called EndLoad. The optimizer counts its committed
// steps. Package elastic compares this number between the ranks after a failure.
//
// Other goroutines may call Committed, for example a function that saves the state before the
// process ends because of a failure:
//
//	pg.OnShutdown(func(ctx context.Context, cause error) {
//		steps, consistent := opt.Committed()
//		log.Printf("%v after %d steps; worth saving: %t", cause, steps, consistent)
//	})
//
// # Saving
//
// [State] returns the state of an optimizer by name. [LoadState] loads such a state, with the number
// of steps after which it was saved. nn.State and nn.LoadState do the same for the parameters.
// A file has to hold the bytes, the type and the shape of each variable:
//
//	type tensor struct {
//		DType device.DType
//		Shape device.Shape
//		Data  []byte
//	}
//
//	// Saving: for each name and v in nn.State(net) and in optim.State(opt).
//	data, err := v.Bytes(ctx)
//	file[name] = tensor{v.DType(), v.Shape(), data}
//
//	// Loading: fill params and state from the file.
//	params[name] = autograd.FromBytes(dev, t.DType, t.Shape, t.Data)
//	...
//	err := errors.Join(nn.LoadState(ctx, net, params), optim.LoadState(ctx, opt, steps, state))
//
// Package checkpoint saves all of this, for any number of ranks.
//
// # Parts of parameters
//
// All update rules but Muon's are elementwise: the new value of an element depends only on that
// element, its gradient and its state. Such an optimizer also works on parts of parameters
// ([nn.NewPart]). Package ddp/zero uses this to divide the state among ranks. A [StepHook] is called
// within Step, after the updates. The state of a part has the shape of the part's variable.
//
// Muon needs whole matrices, but only to orthogonalize steps: see [Muon.DivideParts], which package ddp/zero calls.
//
// # Averages
//
// An [EMA] keeps moving averages of the parameters, which often evaluate better than the parameters.
// It counts the steps that the optimizer commits, so a skipped step does not change the averages. If
// the replicas are equal, their averages are equal too:
//
//	averages, err := optim.NewEMA(model, opt, nil)
//	...
//	for range steps {
//		... Backward ...
//		if err := averages.Step(); err != nil {
//			return err
//		}
//		averages.ZeroGrad()
//	}
//	err = averages.With(func() error { return evaluate(model) })
//
// An EMA is itself an [Optimizer]. Pass it to checkpoint.State, and in ddp.JoinOptions, instead of opt.
package optim
