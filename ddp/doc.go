// Package ddp trains one model on several processes: DistributedDataParallel.
//
// Each rank has a copy of the model and computes its own part of every batch. [New] makes the
// copies equal. From then on a backward pass through the model's output averages the gradients over
// the ranks. It reduces one bucket of gradients while it computes the next, and every rank's
// optimizer makes the same step:
//
//	model, err := ddp.New(net, pg, nil)
//	opt, err := optim.NewSGD(model.Parameters(), &optim.SGDOptions{LR: 0.001})
//	for step := range steps {
//		loss := nn.MSELoss(model.Forward(x), y, nil)
//		if err := loss.Backward(nil); err != nil {
//			return err
//		}
//		if err := opt.Step(); err != nil {
//			return err
//		}
//		opt.ZeroGrad()
//	}
//
// # How a pass runs
//
// Gradients live in the buckets: a parameter's Grad is a view of its bucket. The backward pass
// writes the gradient there, and the bucket is reduced in place. At first the buckets are in
// reverse order of registration, so that the first step already overlaps communication with
// computation. If the gradients of rank 0's first pass become final in another order, all ranks
// rebuild the buckets in that order before the second pass. The gradients then move once, with
// their values. Do not keep a Grad from before the rebuilding: its memory is no longer used. The rebuilding
// temporarily takes as much memory as the gradients. The last write of each gradient also divides
// the gradient by the number of ranks.
//
// On a GPU the compute stream waits for a bucket when one of its gradients is used. The optimizer updates the last
// parameters first. If the last bucket has 4 MiB or more, the updates of all other buckets run during its reduction.
// The reductions of hooks are waited for at the end of the pass. Buffers are sent just before the last bucket.
// Within [Model.Join] Backward waits for the outcome of the pass, and the buffers are sent after the last bucket,
// because the outcome determines which rank sends them.
//
// New and each backward pass that reduces set the buffers to the values of rank 0. So every forward pass
// starts with the same buffers on all ranks. With Options.LocalBuffers each rank keeps its own buffers.
//
// A backward pass accumulates gradients and reduces nothing if it does not go through the output of
// [Model.Forward] (the module was called directly), or if it runs within [Model.NoSync]. The next
// reducing pass reduces the sum.
//
// Each reducing pass averages the gradients once. Several passes through one or several outputs
// ([Model.Output]) of one forward pass add up their averages. Run all of them but the last within
// NoSync to reduce only once. Reducing only once is necessary if a gradient reads a buffer of the module, such as
// a mask: a reducing pass writes the buffers, so another pass through the same graph panics, unless
// Options.LocalBuffers is set.
//
// If the module's Forward takes or returns several variables, call it within [Model.Run], and pass
// the further results to [Model.Output]:
//
//	loss := model.Run(func() *autograd.Variable { return net.Forward(ids, mask, labels) })
//
// Layers of batch normalization use each rank's own samples. [SyncBatchNorm] makes them use the
// samples of all ranks.
//
// # Unused parameters
//
// A backward pass that does not use a parameter is an error by default. With
// Options.FindUnusedParameters each rank may use different parameters in each pass.
// Backward then first visits the graph to find the parameters that the pass will use, which costs a
// check of each parameter. If only some ranks use a parameter, all ranks get the average of its gradient, to
// which the other ranks contribute zeros. A parameter that no rank used has no gradient, so optimizers
// do not change it; a gradient that was not zeroed before stays as it was. On a GPU, only the other
// ranks know whether a parameter that this rank did not use has a gradient. So the rank waits for
// the pass when it reads that gradient, as an optimizer's Step does.
//
// With Options.StaticGraph each rank uses the same parameters in every pass; different ranks may
// use different ones. After the first pass the ranks exchange no more than for a model without unused
// parameters, and do not wait. If a later pass uses other parameters than the first, every rank gets a
// [*reducer.GraphChangedError] that names these parameters.
//
// # Uneven inputs
//
// If ranks have different numbers of inputs, run the training loop within [Model.Join]:
//
//	err := model.Join(func() error {
//		for x, y := range batches {
//			... // train
//		}
//		return nil
//	}, &ddp.JoinOptions{Optimizer: opt})
//
// A rank without inputs takes part in the reductions of the other ranks with zeros, until no rank
// has inputs. This adds no communication to a step, because the flag that a rank has no inputs
// travels with the flags for missing gradients. Gradients are divided by the number of ranks, or,
// with an option, by the number of ranks with inputs. At the end all ranks get the parameters, the
// buffers and, if Optimizer is set, the optimizer's state of a rank that made the last step. Unused
// parameters, static graphs, NoSync, hooks and checks work within Join. The parameters of a static
// graph are determined in the first pass that all ranks make. A parameter that no rank with inputs
// uses has no gradient, so optimizers do not change it. This holds for static graphs too, whose
// ranks within Join communicate and wait as with FindUnusedParameters. If a rank has accumulated
// gradients and then makes only a shadow pass, the other ranks average as if that rank had zeroed
// its gradients.
//
// If the loop of one rank returns an error, the other ranks get a [*reducer.LeftError] in their
// next step, without waiting for a timeout.
//
// A model that communicates in Forward needs all ranks in each step. Use [Lockstep], which ends the
// loops of all ranks when the first rank has no input.
//
// # Stopping on request
//
// Ctrl-C, a batch system that preempts a job, and Kubernetes send SIGINT or SIGTERM and give a job
// some seconds to end. A loop that calls [Model.Stopping] loses no step:
//
//	for step := 0; step < steps && !model.Stopping(); step++ {
//		... // train
//	}
//	return save() // comm.Main exits with 128 plus the signal's number
//
// From the first call on, a signal to any rank is a request to stop. The rank sends the request
// with the gradients of its next reducing pass, in a word of the status, which every pass sends.
// So all ranks leave the loop after the same step, even if only one process got the signal. Stopping does not
// slow down a step, and does not wait on a GPU, because Step has already read the status. It
// works with NoSync, unused parameters, static graphs, uneven inputs, hooks and package ddp/zero. A
// loop within [Model.Join] calls Stopping like any other loop.
//
// The ranks have half of the launcher's shutdown timeout to agree, and the rest to save. After the
// first half, or at a second signal, the context that [comm.Main] gave the program ends. In a
// program that never calls Stopping, it ends at the first signal. docs/failures.md describes the
// whole sequence.
//
// # Evaluation, freezing, checkpointing
//
// An evaluation within [autograd.NoGrad] does not communicate, so one rank may run it alone. Package metrics combines
// results of all ranks. [nn.State] of the model returns the state of its module ([Model.Unwrap]), with the same names.
//
// Freeze parameters ([nn.Parameter.Freeze]) before New, the same ones on all ranks; otherwise New
// fails. Frozen parameters have no place in the buckets. To freeze or unfreeze others later, wrap
// the module again with New. If a parameter is frozen after New, every step fails with a
// [*reducer.MissingGradientError] until it is unfrozen, unless FindUnusedParameters is set. If a
// parameter that was frozen before New is unfrozen, the next pass panics with an [*UnfrozenError].
//
// Parts of the module may be checkpointed ([nn.Checkpoint]), even if other parts use their
// parameters too: each gradient becomes final once and is reduced while the rest of the pass
// computes. Averages of the parameters (optim.EMA) are equal on all ranks if they are updated after
// each Step.
//
// # Several models and groups
//
// Groups that share a GPU must start their calls in the same order on all ranks (package comm). A model may
// communicate over one group in its forward and backward passes while ddp reduces over another group: the order
// is the same, because a backward pass runs the same operations in the same order on all ranks. It may differ
// if ranks use different parameters.
//
// Two models may take part in one backward pass (a generator and a discriminator). Their reductions then share the
// group's order. A missing or unused gradient can make this order differ between ranks. If that can happen, give each
// model its own group (ProcessGroup.Split).
//
// # Errors
//
// A parameter without a gradient is a [*reducer.MissingGradientError] on every rank in the same
// step. No rank applies the step, and the next step works again. A lost peer or a timeout is the
// error of a collective (comm.ErrPeerLost, comm.ErrTimeout), and the group is broken. On the CPU,
// and on the rank whose own gradient is missing, Backward returns these errors. On a GPU Backward
// does not wait for the other ranks: the optimizer's Step returns their errors, or the next
// Backward if no optimizer is used. New returns a [*reducer.ModelMismatchError] if the models
// differ between ranks.
//
// A panic in a rank's backward pass aborts the group, for example an [*autograd.ModifiedError]
// because the program made a step between the forward pass and Backward. The other ranks get an
// error at once that names the rank and contains the panic's message. New, the end of Join
// and the sending of buffers count as in-place writes to what they set, on all ranks.
//
// # Going on after a failure
//
// After a failure the job goes on in the same processes if the program uses package elastic (or train) and golaunch
// --on-failure has started it. The group then changes its members, and [Model.Regroup] adapts the model to them.
// Otherwise the program may close the broken group, join another one, and wrap the module again. New then gives all
// ranks the parameters of rank 0, but the optimizer's state remains each rank's own, and the failure may have left some
// ranks inconsistent: checkpoint.Transfer copies the state of one rank to the others. A backward pass through the model
// of the broken group panics with a [*ReplacedError].
//
// # Statistics
//
// [Model.Stats] returns the buckets, whether they were rebuilt, the order in which gradients became
// final, and the parameters that passes did not use. With Options.Stats it also has the times of
// forward and backward passes and of reductions, and how much of the reductions was hidden by
// computation. The model logs the statistics at every hundredth reducing pass, at level debug. A
// trace (package profile) shows each pass.
//
// # Checks
//
// Two kinds of mistakes do not stop the program but make its training useless. There is a check for each,
// which is off by default.
//
// Replicas drift apart if one rank changes its parameters differently from the others: by an update that only this
// rank makes, a memory error, or a nondeterministic kernel. Options.CheckReplicas = N hashes all parameters at the
// start of every N-th reducing pass, gathers the hashes during the pass, and compares them at its end. If they differ,
// Backward returns a [*ReplicaDriftError] on every rank. It lists the ranks that differ from the majority (with two
// ranks there is no majority), the first parameter that differs and the number of such parameters. The check changes
// nothing, the step is not applied, and the group remains usable: to repair the job, broadcast the parameters of a
// rank that is right. A check reads each byte of the parameters once and gathers 8 bytes per parameter and rank. On a
// GPU Backward then waits for the device at the end of the pass. Buffers are not compared, because running statistics
// may differ between ranks.
//
// A NaN or Inf in one rank's gradient spreads to all ranks when it is reduced.
// Options.CheckNonFinite, or GODDP_NAN_CHECK=1 or TORCH_NCCL_NAN_CHECK=1 in the environment, checks
// each gradient when it is final, before it is reduced. If a check fails, every rank gets a
// [*reducer.NonFiniteError] that names the rank, and its first bucket and parameter with such a gradient. No
// rank applies the step, and the next step works again. Backward and Step return the error, as for a
// missing gradient. Gradients that accumulate within NoSync are checked by the pass that
// reduces them. A sum that overflows in the reduction itself is not detected. The check reads each
// byte of the gradients once more. On a GPU the host waits for the device once in a pass, before
// the last bucket is reduced.
package ddp
