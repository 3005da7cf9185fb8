// Package zero divides the optimizer's state among the ranks that train one
// model: ZeRO, stage 1 (Rajbhandari et al., "ZeRO: Memory Optimizations Toward
// Training Trillion Parameter Models", 2020). It is package ddp with another
// optimizer; losses and parameters are the same.
//
//	model, opt, err := zero.New(net, pg, func(params []*nn.Parameter) (*optim.AdamW, error) {
//		return optim.NewAdamW(params, &optim.AdamWOptions{LR: 0.001, WeightDecay: 0.01})
//	}, nil)
//	for range steps {
//		if err := nn.MSELoss(model.Forward(x), y).Backward(); err != nil {
//			return err
//		}
//		if err := opt.Step(); err != nil {
//			return err
//		}
//		opt.ZeroGrad()
//	}
//
// # How a step runs
//
// The parameters move, once, into buckets that are laid out as those of their
// gradients are. A bucket is padded to equal shards, one for each rank, which are
// contiguous and start on [device.Align] bytes. A backward pass reduce-scatters
// each bucket of gradients in place as soon as it is complete, so that each rank
// has the averages of its own shard; Step updates the shard, and all-gathers the
// bucket of parameters in place. Per rank and step:
//
//	bytes on the wire   those of an all-reduce, (N-1)/N·P for each of the two
//	state               1/N, and with it that of masters and the time of updates
//	parameters          P, and gradients P, as in package ddp
//
// A rank's shard of a bucket holds one part of each parameter there, from element
// lo to hi, often the whole of it or nothing; a parameter that lies across two
// shards has a part on either. The optimizer that New is given a function for is
// an ordinary one over these parts. A part is a parameter with the name and the shape
// of the whole ([nn.NewPart]): groups are made by name or by shape as ever. The variable
// of a part, and what the optimizer keeps of it, is a row of the elements from lo to hi.
// Parts are in the order of the buckets, the last registered first. Those that are empty
// are there too: all ranks have the same list, commit the same steps and count them
// alike. An optimizer must be elementwise, as those of package optim are, and say
// so by a method ([Local]), or the program does not compile: a rule that takes
// norms over whole parameters would see parts of them.
//
// The status, the flags that say whether some rank lacks a gradient, is reduced by
// itself, as with any reducer.Hook: each rank has to have it whole. Step enqueues the
// updates, which skip themselves if a flag is raised, and then waits until the
// flags are known, which is when the reductions are done and the updates still
// run. Only then it starts the gathers, each behind the event that ends its
// bucket's updates, on the group's communication stream: bucket by bucket while
// later ones are updated. So all ranks gather, or none does, and a program may go
// on with the next pass on the one rank that knew early. Step makes the compute
// stream wait for the gathers, the host waits for nothing more.
//
// A request to stop travels in the status, so that all ranks stop behind a step that all
// have gathered: see [ddp.Model.Stopping].
//
// # The layout is fixed
//
// Buckets are in reverse order of registration, and not rebuilt when rank 0's first
// pass shows another order, as package ddp does: parameters and the optimizer's
// state would have to move with them, between ranks. What it costs is overlap,
// where the modules of a model are registered in another order than they are
// used in: buckets are reduced in order of index, so that one that is complete late
// holds up those behind it. Register parameters in the order in which Forward uses
// them.
//
// # What differs from package ddp
//
// After a backward pass that reduced, a gradient is an average within this rank's
// shard and something else beyond. [Optimizer.Parameters] are the parts that are
// averages: code that looks at gradients, such as amp.Scaler, goes by these. The
// norm of all gradients is bounded by [Optimizer.ClipGradNorm]. Such a
// gradient cannot be added to: a pass that finds one panics with an
// [*AccumulationError]. Accumulate within NoSync; all passes but the last of a step
// belong there.
//
// amp.Scaler finds the group of an Optimizer by itself, and has its ranks agree on
// each overflow: with one, all ranks call its Step behind each pass, also where
// Backward has told one of them that the step will be skipped.
//
// Averages of the parameters (optim.EMA) work, undivided. Options.Hook of package
// ddp is taken. With Options.ReduceDType the parameters have to be of one type.
//
// # Uneven inputs
//
// Where ranks have different numbers of inputs, the training loop runs within
// [Model.Join]:
//
//	err := model.Join(nil, func() error {
//		for x, y := range batches {
//			... // as ever
//		}
//		return nil
//	})
//
// A rank without inputs has its shards all the same, and nobody else does. So it
// takes part in the others' reductions with zeros, which gives it the averages of its
// shards, updates these, and gives them in the gathers. Whatever a loop does in a step
// beside that, by a loss scale, with the norm of all gradients, or for averages of the
// parameters, it does too, if it is told:
//
//	step := func() error {
//		if err := scaler.Step(opt); err != nil {
//			return err
//		}
//		scaler.Update()
//		return nil
//	}
//	err := model.Join(&zero.JoinOptions{Step: step}, func() error {
//		for x, y := range batches {
//			... // Backward, step, ZeroGrad
//		}
//		return nil
//	})
//
// In the end parameters, state and scale are, on all ranks, those of all steps. Within
// Join amp.Scaler waits for the outcome of a pass before its ranks agree on an
// overflow: behind a pass that is skipped nobody asks, whether a loop calls Step there
// or not.
//
// # Saving and restoring
//
// [Optimizer.Gather] shows the whole state on every rank, one parameter's after the
// other, by the names and in the shapes that the same optimizer has without
// shards. [Optimizer.Load] takes its shards of such a state, whatever number of
// ranks, or none, it comes from; and an optimizer without shards takes what Gather
// showed. The parameters are whole on all ranks: save and load those as ever.
//
// # Failure
//
// A step commits or it is torn, as package optim has it; a gather that failed is a
// torn step. Nobody else has a rank's shard, so a process that died takes it along,
// and what remains is a checkpoint. Where all processes live, and all have made
// their updates of the same steps (the group timed out, a gather failed),
// [Recover] makes parameters and state whole again in the next group, from the
// shards, also where that has further ranks:
//
//	model, opt, err = zero.Recover(net, pg, opt, newLocal, nil)
//
// Otherwise every rank gets a [*LostShardError].
package zero
