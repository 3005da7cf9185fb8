// Package elastic lets a training loop go on when its job loses ranks. golaunch --on-failure shrink or replace
// starts such a job. train.Run uses the package by itself; a program with its own loop calls [Run]:
//
//	err = elastic.Run(ctx, pg, &elastic.Config{
//		State: checkpoint.State{Model: model, Optimizers: []optim.Optimizer{opt}},
//		Data:  loader,
//	}, func(ctx context.Context) error { // is called again after each change of the job's members
//		for epoch := loader.Position().Epoch; epoch < epochs; epoch++ {
//			for b, err := range loader.Epoch(ctx, epoch) { // from the first sample that is not committed
//				if err != nil {
//					return err
//				}
//				if err := lossOf(model, b).Backward(nil); err != nil {
//					return err
//				}
//				if err := opt.Step(); err != nil {
//					return err
//				}
//				opt.ZeroGrad()
//			}
//		}
//		return nil
//	})
//
// When a rank is lost, the calls of the others fail within milliseconds, and the loop returns their error. Run
// then takes the group to its next members, makes the members' states equal, and calls the loop again. The step
// in progress is made again, unless a member has committed it. No sample is lost and none is used twice, except
// those that [data.Pad] repeats at an epoch's end. Afterwards the replicas are equal bit for bit, as after any step.
//
// # What the loop must do
//
// The loop takes the rank and the number of ranks from the group whenever it needs them, because both change. It
// returns the first error of a call. Everything that it changes from step to step belongs to State: what is in
// neither State nor the position of Data keeps its value, also when a step is made again. State.Values are copied
// at each step, so they must be small.
//
// The number of samples in a step changes with the number of ranks, unless Data has a GlobalBatch: see package data.
//
// Values change before Step: what the loop changes in them after Step is lost if the next step fails.
//
// A replacement runs the program from its start. Until Run it has the rank and the size that the lost one had at the
// job's start, but is alone: see [comm.ProcessGroup.Reconfigure]. Anything that it writes before Run must not disturb
// the job.
//
// # What cannot survive
//
// Run returns an error for communication hooks with a state and for several optimizers. Groups made by Split are closed.
// While golaunch does not run with --on-failure, Run only calls the loop.
//
// With ddp/zero, a lost rank's part of the optimizer's state is lost, and Restore loads a checkpoint, unless the ranks
// keep copies (zero.Options.CopyShards).
package elastic
