// Package ddp trains one model on several processes: DistributedDataParallel.
//
// Each rank holds a copy of the model and sees its own part of every batch.
// [New] makes the copies equal; from then on a backward pass through the
// model's output averages the gradients over the ranks, bucket by bucket,
// while the rest of the pass still computes, and every rank's optimizer makes
// the same step:
//
//	model, err := ddp.New(net, pg, nil)
//	opt, err := optim.NewSGD(model.Parameters(), &optim.SGDOptions{LR: 0.001})
//	for step := range steps {
//		loss := nn.MSELoss(model.Forward(x), y)
//		if err := loss.Backward(); err != nil {
//			return err
//		}
//		if err := opt.Step(); err != nil {
//			return err
//		}
//		opt.ZeroGrad()
//	}
//
// # What happens when
//
// Gradients live in the buckets: a parameter's Grad is a view of its bucket,
// written there by the backward pass itself, and reduced in place. The buckets
// are in reverse order of registration and used from the first step on, so
// that the first step overlaps like all others. Where rank 0's first pass shows
// another order, the second begins with buckets that follow it, on every rank:
// gradients move then, once, with what is in them, and a Grad that was got before
// is of memory that nobody writes to any more. While they move, that takes the
// memory of the gradients once more. The division by the number of ranks is folded
// into the last write of each gradient.
//
// On a GPU the compute stream waits for a bucket where one of its gradients is used.
// The optimizer's updates begin with the last parameters, so that all but those of the
// last bucket hide behind its reduction, if it has 4 MiB or more. Hooks are waited for
// at the end of the pass. So are buffers, which are sent just before the last bucket,
// or, within [Model.Join], behind it: there the outcome of the pass tells whose they
// are to be, which Backward waits for.
//
// Buffers are set to rank 0's by New, and behind each backward pass that reduces,
// so that every forward pass after it begins with the same on all ranks.
// Options.LocalBuffers leaves each rank its own.
//
// A backward pass that does not go through the output of [Model.Forward] (the
// module was called directly), or that runs within [Model.NoSync], accumulates
// gradients and reduces nothing; the next one reduces the sum.
//
// A gradient is averaged once for each pass that reduces. Several passes through
// one or several outputs ([Model.Output]) of one forward pass add their averages
// up; within NoSync all but the last of them cost no reduction.
//
// A model whose Forward takes or returns several variables is applied within [Model.Run];
// [Model.Output] takes its further results:
//
//	loss := model.Run(func() *autograd.Variable { return net.Forward(ids, mask, labels) })
//
// Layers of batch normalisation go by each rank's own samples, unless [SyncBatchNorm] has
// them go by those of all ranks.
//
// # Unused parameters
//
// A backward pass that does not reach a parameter is an error, unless an option
// says otherwise. With Options.FindUnusedParameters ranks may use different
// parameters, and other ones in each pass. The search begins where Backward does,
// and costs a look at each parameter: autograd knows before it begins what it will
// reach. A gradient that only some ranks computed is the average on all, with zeros
// for the others. A parameter that no rank used has no gradient, and no optimizer
// touches it; or it keeps the one it had, where that was not zeroed. On a GPU, a
// rank that did not use some parameter waits for the pass where it asks for that
// gradient, as an optimizer's Step does, because only the others know.
//
// With Options.StaticGraph each rank uses the same parameters in every pass, if
// others than the other ranks. After the first pass there is nothing to tell or to
// wait for any more, and a pass that reaches others is a
// [*reducer.GraphChangedError], by name, on every rank.
//
// # Uneven inputs
//
// Where ranks have different numbers of inputs, the training loop runs within
// [Model.Join]:
//
//	err := model.Join(&ddp.JoinOptions{Optimizer: opt}, func() error {
//		for x, y := range batches {
//			... // as ever
//		}
//		return nil
//	})
//
// A rank that has no inputs any more takes part in the others' reductions with
// zeros, until none has: a step costs nothing more for it, since who is without
// inputs travels where missing gradients do. Gradients are divided by the number of
// ranks, or by that of those that have inputs. In the end all have the parameters,
// the buffers and, if Optimizer is set, the momentum of one that was left last.
// Unused parameters, static graphs, accumulation within NoSync, hooks and checks go
// on as ever; which parameters a static graph uses is learned from the first pass
// that all ranks make. A parameter that no rank with inputs uses has no gradient, so
// that no optimizer touches it: also one of a static graph, whose ranks within Join
// tell and wait as with FindUnusedParameters. What accumulated before a pass that a rank only shadows
// counts for the others as if that rank had zeroed it.
//
// An error of one rank's loop is a [*reducer.LeftError] on the others, in their next
// step, in place of a timeout.
//
// A model that communicates in Forward needs all ranks in each step: [Lockstep] ends
// the loops of all where the first rank has no input.
//
// # Stopping on request
//
// Ctrl-C, a batch system that preempts a job and Kubernetes send SIGINT or SIGTERM and
// leave a job some seconds. A loop that asks [Model.Stopping] loses no step to them:
//
//	for step := 0; step < steps && !model.Stopping(); step++ {
//		... // as ever
//	}
//	return save() // comm.Main exits with 128 plus the signal's number
//
// From the first call on, a signal to any rank is a request. The rank passes it on with the
// gradients of its next backward pass that reduces, in two words of the status, which travels
// anyway. So all ranks leave the loop behind the same step, whether golaunch signalled all of
// them or somebody one. A step costs nothing more. On a GPU nothing waits: Step has read the
// status already. NoSync, unused parameters, static graphs, uneven inputs, hooks and package
// ddp/zero change nothing; a loop within [Model.Join] asks as any other does.
//
// The ranks have half of the launcher's shutdown timeout to agree, and the rest to save.
// After the first half, or at a second signal, the context that [comm.Main] gave the program
// ends, as it does at the first signal in a program that never asks. docs/failures.md has the
// whole sequence.
//
// # What goes beside it
//
// An evaluation within [autograd.NoGrad] communicates nothing, so that one rank
// may run it alone; package metrics reduces what all ranks found. [nn.State] of
// the model is that of its module, [Model.Unwrap], under the same names.
//
// Parameters are frozen ([nn.Parameter.Freeze]) before New, alike on all ranks, or
// New fails: they have no place in the buckets. To freeze others, or unfreeze them, later,
// wrap the module again with New. Without that, a parameter that is frozen after
// New lacks its gradient, a [*reducer.MissingGradientError] in every step until it
// is unfrozen, unless unused parameters are found; and one that was frozen before
// New and is no more makes the next pass panic with an [*UnfrozenError].
//
// Parts of the module may be checkpointed ([nn.Checkpoint]), with parameters that
// are used elsewhere too: each gradient is final once, and reduced while the rest
// of the pass computes. Averages of the parameters (optim.EMA) that are updated
// after each Step are equal on all ranks.
//
// # Several models and groups
//
// Groups that share a GPU must start their calls in the same order on all ranks
// (package comm). A model that communicates over a group of its own within
// Forward and its gradients, and one that ddp reduces over another, do: a backward
// pass goes through the same operations in the same order everywhere, unless ranks
// use different parameters.
//
// Two models may take part in one backward pass (a generator and a
// discriminator): their reductions then share the group's order, in which a
// gradient that is missing or unused puts the ranks at odds. Give each a group of
// its own (ProcessGroup.Split) where that can happen.
//
// # Errors
//
// A parameter that got no gradient is a [*reducer.MissingGradientError] on
// every rank in that very step; no rank applies it, and the next one trains on.
// A peer that died, or a timeout, is the error of the collective
// (comm.ErrPeerLost, comm.ErrTimeout): the group is broken then. On the CPU, and
// on the rank whose own gradient is missing, these come out of Backward. On a
// GPU Backward does not wait for the other ranks, and their errors come out of
// the optimizer's Step, or, where no optimizer asks, of the next Backward.
// Models that differ between ranks are a
// [*reducer.ModelMismatchError] from New.
//
// A panic in a rank's backward pass, such as an [*autograd.ModifiedError] where the
// program made a step between the forward pass and Backward, breaks the group: the other
// ranks get an error at once that names the rank and says what it panicked with. New,
// Recover, the end of Join and the sending of buffers count as writes to what they set,
// on all ranks.
//
// # Going on after a failure
//
// A group that broke is closed, and the process may join another: the ranks find
// out where to go on with [Recover], and wrap the module again.
//
//	for {
//		pg, err := comm.Init(ctx, &comm.Options{Device: dev, ErrorMode: comm.BlockingWait})
//		if err != nil {
//			return err
//		}
//		step, err := ddp.Recover(net, pg, opt)
//		if err == nil {
//			err = train(pg, net, opt, step) // begins with ddp.New(net, pg, nil)
//		}
//		pg.Close()
//		if !errors.Is(err, comm.ErrTimeout) && !errors.Is(err, comm.ErrPeerLost) && !errors.Is(err, comm.ErrAborted) {
//			return err
//		}
//	}
//
// A failure leaves each rank whole, after one number of committed steps or
// another, or torn: within an update. Recover takes parameters, buffers and the
// optimizer's state from a rank that is whole at the last step that any
// committed. If there is none, every rank gets a [*LostStateError], and has to
// restore a checkpoint. A rank that joins anew gets what the others have, and
// all losses are as they would have been: a step is a function of that state and
// of its number, if the program draws its batches by number. Buffers are as the
// last forward pass of the rank that they come from left them.
//
// In BlockingWait mode Backward waits for the reductions, on a GPU too, so that
// one that fails leaves every rank whole; in other modes a GPU may have the
// updates behind it enqueued by then, and all ranks are torn.
//
// The module lives on dev, which has to outlive the groups: Close closes a device
// that Init opened. A backward pass through the earlier model panics with a
// [*ReplacedError]. examples/recover is a whole program.
//
// # What it did
//
// [Model.Stats] has the buckets, whether and how they were rebuilt, the order in
// which gradients became final, and what passes left unused; with Options.Stats
// also how long forward and backward passes and the reductions took, and how much
// of these was hidden. The log has it at every hundredth pass that reduces, at the
// level of debugging. A trace (package profile) has each pass by itself.
//
// # Checks
//
// Two mistakes end no program and spoil its training. Each has a check, which is
// off unless asked for.
//
// Replicas drift apart when one rank changes its parameters otherwise than the
// others do: an update of its own, memory that lost a bit, a kernel that is not
// deterministic. Options.CheckReplicas = N hashes all parameters at the start of
// every N-th backward pass that reduces, gathers the hashes while the pass runs,
// and compares them at its end. A difference is a [*ReplicaDriftError] from that
// Backward, on every rank: the ranks that a majority outvotes (of two, none can
// be told), the first parameter that differs and how many do. It changes nothing,
// the step is not applied, and the group stays usable: broadcasting the
// parameters from a rank that is right mends the job. A check reads each byte of
// the parameters once and gathers 8 bytes for each parameter and rank; on a GPU
// Backward then waits for the device, at the end of the pass. Buffers are not
// compared: they are each rank's own, and running statistics differ.
//
// A NaN or Inf in one rank's gradient is in every rank's once it is reduced.
// Options.CheckNonFinite, or GODDP_NAN_CHECK=1 or TORCH_NCCL_NAN_CHECK=1 in the
// environment, looks at each gradient when it is final and before it is reduced.
// What is found is a [*reducer.NonFiniteError] on every rank: whose gradients
// they are, the first bucket and the first parameter in it. No rank applies the
// step, and the next one trains on. It comes out of Backward and Step as that of
// a missing gradient does. What accumulated within NoSync is found by the pass
// that reduces it; a sum that overflows in the reduction itself is not. The check
// reads each byte of the gradients once more; on a GPU the host waits for the
// device once in a pass, before the last bucket is reduced, and never between
// buckets.
package ddp
