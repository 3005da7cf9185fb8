// Package train has the loop that most training programs need: epochs or steps of batches,
// gradient accumulation, a learning rate schedule, a progress line or bar, an evaluation after each
// epoch, checkpoints, the best one, early stopping, callbacks, and a clean stop on request.
//
//	err := train.Run(ctx, pg, &train.Config{
//		Model: model, Optimizer: opt, Data: loader, Epochs: 10,
//		Loss: func(b *data.Batch) *autograd.Variable {
//			return nn.CrossEntropyLoss(model.Forward(b.Vars[0]), b.Vars[1], nil)
//		},
//	})
//
// A program that needs another loop writes it with packages data, optim, checkpoint and progress:
// docs/checkpoints.md has one.
//
// # Steps
//
// In one step each rank computes the gradients of Config.Accumulate batches, all ranks reduce them, and
// the optimizer updates the parameters. The last step of an epoch may have fewer batches: gradients do
// not accumulate across epochs. If the loader has a GlobalBatch, a step has that many samples with any number of ranks,
// and Run computes the gradients of a rank's part in micro-batches. Steps are counted from 0 over all epochs. A run that resumes from a
// checkpoint continues the count.
//
// If the samples have different numbers of labels, as texts of which only the answers are learned, let Loss return the
// sum of the labels' losses and set Config.SumLoss. A step then uses the mean over all its labels, with any number of
// micro-batches and ranks:
//
//	Loss: func(b *data.Batch) *autograd.Variable {
//		return autograd.LinearCrossEntropyLoss(hidden(b.Vars[0]), head, b.Vars[1],
//			&autograd.LinearLossOptions{IgnoreIndex: &ignored, Sum: true})
//	},
//	SumLoss: true,
//
// # The best model
//
// Config.Best names the value of Evaluate that says how good the model is. The checkpoint of the best model stays beside
// the last ones, and with Config.Patience the run ends when the model gets no better:
//
//	Evaluate: train.Accuracy(pg, model, tests), EvaluateEvery: 500,
//	Best: "accuracy", Mode: train.Max, Patience: 5,
//	Checkpoints: "run1",
//
//	path, err := checkpoint.Best("run1") // after Run
//	if err == nil {
//		_, err = checkpoint.LoadWeights(path, net)
//	}
//
// The ranks may return different values. Rank 0 decides on its own and broadcasts the outcome, so all ranks save and end at
// the same step. Checkpoints hold the best value and the number of evaluations since, so a run that resumes decides as if
// it had not been interrupted. A run that has ended early makes no steps if it is started again, unless it has more
// Patience. A value that is NaN or infinite is not better than any.
//
// # Callbacks
//
// Config.OnStep, OnEvaluation and OnCheckpoint are called on each rank:
//
//	OnStep: func(ctx context.Context, s *train.Status) error {
//		if time.Since(start) > 11*time.Hour {
//			return train.ErrStop // the clocks of the ranks need not agree
//		}
//		return nil
//	},
//
// The rank asks all ranks in the reductions of its next step, so a callback costs no communication, and no rank waits for
// another. All ranks end after that step, save a checkpoint, and write Config.Weights if no callback has failed.
// Otherwise Run returns the callbacks' errors on all ranks. comm.Main ends with exit code 0 after ErrStop, unlike after a signal.
//
// # What Run leaves
//
// Run changes the learning rates, the gradients, and the state of the model and the optimizer. When it ends, it
// restores the optimizer's learning rates. [Accuracy] restores the mode of each layer, and leaves its loader's position.
// Two things stay after Run: the device's recorder keeps the spans of a trace, and the first SIGTERM or SIGINT still asks
// the ranks to stop instead of ending the process ([github.com/goddp/goddp/comm.ProcessGroup.StopRequested]).
//
// # Stopping
//
// After each step Run asks the model whether all ranks stop
// ([github.com/goddp/goddp/ddp.Model.Stopping]). If so, it saves a checkpoint, if the Config has a
// folder for checkpoints, and returns nil. comm.Main then ends the process with the signal's exit
// code.
package train
