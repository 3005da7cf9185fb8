// Package zero divides the optimizer's state, and on request gradients and parameters, among the ranks that
// train one model. It implements ZeRO, stages 1 to 3 (Rajbhandari et al., "ZeRO: Memory Optimizations Toward
// Training Trillion Parameter Models", 2020). Losses and parameters are the same as with package ddp:
//
//	model, opt, err := zero.New(net, pg, func(params []*nn.Parameter) (*optim.AdamW, error) {
//		return optim.NewAdamW(params, &optim.AdamWOptions{LR: 0.001, WeightDecay: 0.01})
//	}, nil)
//	for range steps {
//		if err := nn.MSELoss(model.Forward(x), y, nil).Backward(nil); err != nil {
//			return err
//		}
//		if err := opt.Step(); err != nil {
//			return err
//		}
//		opt.ZeroGrad()
//	}
//
// # How a step of stage 1 runs
//
// New moves the parameters into buckets that have the same layout as the buckets of the gradients.
// Each bucket is padded and divided into equal, contiguous shards, one for each rank. A shard
// starts at a multiple of [device.Align] bytes. A backward pass reduce-scatters each bucket of
// gradients in place as soon as the bucket is complete, so that each rank gets the averages of its
// shard. Step updates the shard and all-gathers the bucket of parameters in place. With P bytes of
// parameters on N ranks, one step costs on each rank:
//
//	bytes sent          (N-1)/N·P for the gradients and (N-1)/N·P for the parameters,
//	                    together as many as for one all-reduce
//	optimizer state     1/N of the whole; likewise master copies and the time of updates
//	memory              P for the parameters and P for the gradients, as in package ddp
//
// A rank's shard of a bucket holds one part of each parameter in the bucket: the elements from lo
// to hi. A part is often the whole parameter, or empty. A parameter that lies across two shards has
// a part on each of their ranks. The function that the program gives New makes an ordinary
// optimizer for these parts. A part is a parameter with the name and the shape of the whole
// parameter ([nn.NewPart]), so the function can form groups by name or by shape. The variable of a
// part, and the optimizer's state for it, is one-dimensional and holds only the elements from lo to
// hi. The parts are in the order of the buckets: the parameter that was registered last comes
// first. Every rank has all parts, including empty ones, so that all ranks commit and count the
// same steps. The optimizer must be elementwise, as most in package optim are, or [Divisible]. It declares this by
// a method ([Local]); without the method the program does not compile. A rule that uses norms over
// whole parameters would see only parts of them.
//
// Muon is divisible, in every stage. Each matrix is orthogonalized by one rank, so that the ranks have about equal work.
// When it is known that the step is not skipped, that rank gets the parts of the others, and sends them their parts of the
// result. With P elements in matrices, each rank sends up to 2·P/N numbers in Float32 in a step, and keeps memory for as
// many. The results are those of an optimizer without shards, bit for bit. If a step fails on one rank while the ranks
// exchange matrices, the optimizer is inconsistent on all. CopyShards cannot be used.
//
// The status (the flags that say whether a rank lacks a gradient) is reduced separately, because
// every rank needs the whole status. Step enqueues the updates, which do nothing on the device if a
// flag is raised. Then Step waits until the flags are known, that is, until the reductions are
// done; the updates still run at that time. Only then Step starts the gathers, on the group's
// communication stream. So either all ranks gather or no rank does, even if one rank knew the outcome
// before the others. Each gather waits for the event that ends the updates of its bucket. The gathers run
// under the next forward pass: they begin with the parameters that are used first, and the compute stream
// waits for a bucket's gather before it first reads a parameter of the bucket. Between steps every rank
// may read every parameter, alone and in any order.
//
// A request to stop is sent with the status. So all ranks stop after the same step, and all have gathered
// the parameters of that step: see [ddp.Model.Stopping].
//
// # Stages 2 and 3
//
// With P bytes of parameters on N ranks, a rank keeps these bytes of parameters and gradients, beside its 1/N of the
// optimizer's state. S bytes are the size of the slots: a slot is memory for one bucket at a time, at a fixed address.
//
//	stage 1    P + P
//	stage 2    P + P/N + S
//	stage 3    P/N + S + P/N + S
//
// In stage 2 a bucket of gradients takes a slot when its first gradient is written, and gives it back when it is reduced
// into this rank's shard. A parameter that is used at both ends of a model keeps its bucket's slot for the whole pass; if
// a pass needs more slots, they are allocated in the first one.
//
// In stage 3 parameters are in slots too: each operation makes sure that the buckets of its parameters are whole. The
// first step shows the order in which operations use buckets. From then on a bucket is gathered while the operations
// before it compute, as soon as no operation needs its slot's present content. A backward pass gathers only the
// parameters that gradients depend on: no biases, and no embedding that has no other use. Recomputed blocks and several
// outputs need nothing of their own. A step sends half as many bytes again as in stage 1: (N-1)/N·P for each of two
// gathers and one reduction. Frozen parameters, such as the base of adapters (package lora), are divided too, in buckets
// with slots of their own; they have neither gradients nor masters.
//
// With as many slots as buckets, a bucket is gathered once in each step. Stage 3 then needs the memory of stage 1, but a
// captured step contains the gathers, which run under its forward pass.
//
// A bucket of more than twice the largest size has its own memory, as for a large embedding, and is gathered once in
// each step. BucketCapMB is 64 there, so buckets of up to 128 MiB share slots. If one operation needs two buckets of one
// slot, it fails with a [*SlotError].
//
// The forward pass of stage 3 is collective: all ranks must use the parameters in the same order, also in an evaluation.
// An evaluation by Forward or Run of the model may be captured on some ranks alone; one that calls the module itself must be
// captured on all or none. All ranks evaluate the same number of batches: see metrics.Accuracy. If the ranks' orders differ
// in their first pass, the ranks wait until a gather's deadline passes. To evaluate on one rank alone, or to read parameters
// outside of operations, as all functions that save a model do, use [Model.OnRank]. With memory for the whole model on each
// rank, [Model.Whole] is faster, and allows writes. Elsewhere a parameter's Tensor panics with a [*NotWholeError]. New
// refuses FindUnusedParameters, but allows StaticGraph.
//
// No rank has memory for all gradients. So every backward pass reduces its gradients and adds the averages to those that
// this rank keeps, also within NoSync. All ranks must make the same passes, and all get the error of a pass at its end.
// Accumulated gradients may differ from those of stage 1 by rounding. With Options.ReduceDType they are added in float32.
//
// Within [Model.Join], a rank without inputs takes part in the gathers too, if it has made a pass before. NoSync and
// DivideByActive cannot be used there.
//
// If a rank lacks a gradient or its pass fails, it still starts the gathers that the other ranks expect, and all ranks
// skip the step with the same error, as in stage 1. If its very first pass fails, the order is not known yet, so the
// rank aborts the group with the cause. So does a rank whose gather fails.
//
// # No rank holds the whole model
//
// New places a module that is not placed ([nn.Place]) one parameter after the other: each rank keeps what it needs of the
// parameter and of its master, and frees the rest. So the memory for the unrounded values of the largest parameter is
// all that New takes besides what the model keeps:
//
//	f, err := hf.Open(dir, &hf.LoadOptions{DType: device.BFloat16, Masters: true}) // its parameters are read by New
//	model, opt, err := zero.New(f.Model, pg, newLocal, &zero.Options{Stage: 3})
//
// The values are rank 0's, unless SkipInitSync is set. [Model.OnRank] saves the model bucket by bucket:
//
//	err = model.OnRank(0, func() error { return f.Save(ctx, "tuned", nil) })
//
// # The layout is fixed
//
// Buckets are in reverse order of registration. Package ddp rebuilds its buckets if the first pass
// of rank 0 shows another order; this package does not, because parameters and state would have to
// move between ranks. If a model registers its modules in another order than it uses them, there is
// less overlap: buckets are reduced in the order of their index, so a bucket that is complete late
// delays the later buckets. Register parameters in the order in which Forward uses them.
//
// # What differs from package ddp
//
// After a backward pass that reduced, a gradient holds averages within this rank's shard, and
// undefined values elsewhere. Code that reads gradients, such as amp.Scaler, must use the parts
// that [Optimizer.Parameters] returns if [autograd.Variable.GradDivided] returns true.
// [Optimizer.ClipGradNorm] clips by the norm of all gradients. [optim.ClipGradNorm] returns an error,
// as does the Step of another optimizer.
// In stage 1 a pass cannot add to gradients that are reduced to shards; it panics with an
// [*AccumulationError]. To accumulate gradients, run all passes of a step but the last within
// NoSync.
//
// amp.Scaler gets the group from the Optimizer, and lets its ranks agree on each overflow. With a
// scaler, all ranks must call Step of the scaler after each pass, even if Backward has already returned on one
// rank that the step will be skipped.
//
// Averages of the parameters (optim.EMA) work. In stage 3 they are divided too, and lost when the ranks change: the
// program then loads a checkpoint. The program cannot set
// Options.Hook of package ddp, because this package sets it. With Options.ReduceDType all
// parameters must have the same type.
//
// # Uneven inputs
//
// If ranks have different numbers of inputs, run the training loop within [Model.Join]. A rank without inputs still owns
// its shards. So it takes part in the reductions of the other ranks with zeros, updates its shards with the resulting
// averages, and takes part in the gathers. If the loop does more in a step, such as scaling the loss, clipping by the norm
// of all gradients, or updating averages of the parameters, pass that work as JoinOptions.Step, so that ranks without
// inputs do it too:
//
//	step := func() error {
//		if err := scaler.Step(opt); err != nil {
//			return err
//		}
//		scaler.Update()
//		return nil
//	}
//	err := model.Join(func() error {
//		for x, y := range batches {
//			... // Backward, step, ZeroGrad
//		}
//		return nil
//	}, &zero.JoinOptions{Step: step})
//
// When Join returns, the parameters, the state and the loss scale on all ranks are the result of
// all steps. Within Join amp.Scaler waits for the outcome of a pass before the ranks agree on an
// overflow. If the step of a pass is skipped, the ranks do not communicate about an overflow, so the
// loop may or may not call Step after that pass.
//
// # Saving and restoring
//
// [Optimizer.Gather] passes the whole state to a function on every rank, one tensor at a time, with
// the names and shapes that the same optimizer has without shards. [Optimizer.Load] takes this
// rank's shards of such a state. The state may come from any number of ranks, or from an optimizer
// without shards; and an optimizer without shards can load what Gather returned. In stages 1 and 2 the
// parameters are whole on all ranks: save and load them as with package ddp. In stage 3 package checkpoint
// saves each rank's parts, and loads them in any stage on any number of ranks. checkpoint.LoadWeights sets the
// parts too. checkpoint.SaveWeights and hf.Folder.Save are called within [Model.OnRank], also for averages, within
// optim.EMA.With.
//
// # Failure
//
// A step either commits or leaves the optimizer inconsistent, as described in package optim. A
// gather that fails leaves it inconsistent: the operation that needs the parameters and the next Step fail. No rank has
// a copy of another rank's shard, so a job
// restarts from a checkpoint.
//
// # Surviving the loss of ranks
//
// A program that uses train.Run or elastic.Run can go on in the same processes: see package elastic. When a rank is
// lost, its shards of the optimizer's state are lost with it. All other ranks then load the last checkpoint
// (train.Config.Checkpoints, elastic.Config.Restore) and go on from there. If no rank is lost, as after a timeout, or
// if one joins, no state is lost.
// The frozen parameters of stage 3 are in no checkpoint of adapters: if a rank is lost with them, the job must start anew.
//
// With Options.CopyShards, the loss of one rank costs no more than the step in progress, as in package ddp. Each rank
// also keeps the optimizer's state for the shards of the rank before it (the last one for rank 0), and makes the same
// updates with it. For this each rank gets the averages of these shards too:
//
//	bytes sent          1/N·P more for the gradients, between the backward pass and the updates
//	optimizer state     2/N of the whole, and 1/N·P for parameters; likewise the time of updates
//
// If a rank and the one after it are lost at the same time, or before the ranks have divided the state anew, all go on
// from the checkpoint. With two ranks, each has the whole state: package ddp is as safe, and faster.
//
// In such a job, with and without copies, no rank updates its shards before all ranks have the averages of theirs. Each
// step waits for this at a barrier, after the backward pass. So if some ranks make the updates of a step, and another
// one fails to, that rank makes them when the members have changed. A step is not captured.
//
// After each change of the members, newLocal makes new optimizers ([Optimizer.Regroup]). A learning rate that SetLR has
// set is kept; other options that the program has changed are not. So newLocal or the loop must set them.
package zero
