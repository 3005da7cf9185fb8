// Package train has the loop that most training programs need: epochs or steps of batches,
// gradient accumulation, a learning rate schedule, a progress line, an evaluation after each
// epoch, checkpoints, and a clean stop on request.
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
// # What Run leaves
//
// Run changes the learning rates, the gradients, and the state of the model and the optimizer. When it ends, it
// restores the optimizer's learning rates. [Accuracy] restores the mode of each layer. A loader that Run
// or Accuracy reads keeps its position. Two things stay after Run: the device's recorder keeps the spans of a
// trace, and the first SIGTERM or SIGINT still asks the ranks to stop instead of ending the process
// ([github.com/goddp/goddp/comm.ProcessGroup.StopRequested]).
//
// # Stopping
//
// After each step Run asks the model whether all ranks stop
// ([github.com/goddp/goddp/ddp.Model.Stopping]). If so, it saves a checkpoint, if the Config has a
// folder for checkpoints, and returns nil. comm.Main then ends the process with the signal's exit
// code.
package train
