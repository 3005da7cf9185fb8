// Package optim changes parameters by their gradients: by [SGD], [AdamW] (and [NewAdam]),
// [RMSProp] or [Muon].
//
//	opt := optim.NewSGD(model.Parameters(), optim.SGDOptions{LR: 0.1, Momentum: 0.9})
//	for range steps {
//		... Backward ...
//		if err := opt.Step(); err != nil {
//			return err
//		}
//		opt.ZeroGrad()
//	}
//
// Each takes groups of parameters with options of their own, as PyTorch's optimizers do
// ([NewAdamWGroups]), which the program may change between steps. Package optim/schedule has
// learning rates that change.
//
// [ClipGradNorm] bounds the norm of all gradients, between Backward and Step, [ClipGradPNorm]
// another norm, and [ClipGradValue] each element.
//
// A Step writes the parameters in place. A graph that was recorded before, and whose
// backward reads them, is stale then: its Backward panics with an
// [*autograd.ModifiedError]. A Step that is skipped, or refused, leaves graphs as they are.
//
// # Parameters of 16 bits
//
// A step is often smaller than the distance of a 16-bit parameter to the next
// number, 1/128 of it or less in BFloat16, 1/1024 in Float16. Rounding then
// undoes it, this time and every time. With the option MasterWeights an
// optimizer keeps what the parameter would be in Float32, makes the steps on that
// and rounds it into the parameter: one pass, that with SGD reads and writes 6
// bytes more an element (10 with momentum) and keeps 4 more (6). The masters are part of
// the State. They begin as the parameters are at the first step; a program that
// writes parameters later has to restore the masters with them.
//
// It is off unless asked for, so that a step is that of PyTorch's optimizer, in
// memory and in numbers. PyTorch's own mixed precision keeps Float32 parameters, and
// converts them in each forward pass: nn.LinearOptions.Compute does the same.
// [SGD.StepScaled] is for losses that are scaled for Float16: see package amp.
//
// # Commitment
//
// A step changes all parameters or none, as far as that can be had. Before it
// writes anything, Step asks for every gradient whether it may be used, and
// allocates what it needs: an error up to there leaves everything as it was.
//
// On a GPU the answer may not be there yet, because other ranks are still to
// say whether they have theirs. If one set of flags tells of all gradients
// ([autograd.Variable.GradSkip]), Step does not wait to enqueue the updates, from
// the last parameters, whose gradients are there first, to the first: they read
// that answer on the device, and skip themselves. While they run Step waits for
// the answer, and returns the error of that very step, with everything as it was.
//
// A device, or a process group, that fails after updates were enqueued leaves a
// torn step, in which some parameters may be updated and others not: Step then
// returns a [*TornError], now and on every further call, until the program has
// restored a whole state and says so. The optimizer counts the steps that it
// committed, which is what ranks agree on when they recover (ddp.Recover).
//
// Other goroutines may ask how far it is, and whether the state is whole, such
// as a function that saves it before a process ends for a failure:
//
//	pg.OnShutdown(func(ctx context.Context, cause error) {
//		steps, whole := opt.Committed()
//		log.Printf("%v after %d steps; worth saving: %t", cause, steps, whole)
//	})
//
// # Saving
//
// [State] is what an optimizer keeps, by name, and [LoadState] takes it, with the
// number of steps that it was saved after; nn.State and nn.LoadState are their peers
// for the parameters. A variable's Bytes, with its type and shape, are what a file has
// to hold:
//
//	type tensor struct {
//		DType device.DType
//		Shape device.Shape
//		Data  []byte
//	}
//
//	// saving, for name, v in nn.State(net) and in that of optim.State(opt)
//	data, err := v.Bytes(ctx)
//	file[name] = tensor{v.DType(), v.Shape(), data}
//
//	// loading: into params and kept, from the two
//	params[name] = autograd.FromBytes(dev, t.DType, t.Shape, t.Data)
//	...
//	err := errors.Join(nn.LoadState(ctx, net, params), optim.LoadState(ctx, opt, steps, kept))
//
// # Parts of parameters
//
// The rules, but for Muon's, are elementwise: what becomes of an element depends on its own
// gradient and state alone. So an optimizer may be given parts of parameters as
// its parameters ([nn.NewPart]), which is how package ddp/zero divides the state among
// ranks; a [Tail] is what its steps do behind the updates. What an optimizer keeps of a
// part has the shape of the part's Var.
//
// # Averages
//
// An [EMA] keeps moving averages of the parameters, which often evaluate better
// than these. It follows the steps that the optimizer commits, so that a step that
// was skipped does not count, and on equal replicas it is equal:
//
//	averages := optim.NewEMA(model, opt, nil)
//	for range steps {
//		... Backward, Step ...
//		if err := averages.Update(); err != nil {
//			return err
//		}
//	}
//	err := averages.With(func() error { return evaluate(model) })
//
// What goes on after a failure is averages in opt's place: ddp.Recover(net, pg,
// averages).
package optim
