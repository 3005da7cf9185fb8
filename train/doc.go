// Package train has the loop that most training programs write: epochs or steps of batches,
// gradients, steps, a learning rate that follows a schedule, a progress line, an
// evaluation after each epoch, checkpoints to go on from, and a stop when one is asked for.
//
//	err := train.Run(ctx, pg, train.Config{
//		Model: model, Optimizer: opt, Data: loader, Epochs: 10,
//		Loss: func(b *data.Batch) *autograd.Variable {
//			return nn.CrossEntropyLoss(model.Forward(b.Vars[0]), b.Vars[1])
//		},
//	})
//
// A program whose loop is another one writes it: [Run] is a page long, uses exported
// functions alone, and is meant to be copied.
//
// # Steps
//
// A step is the gradients of Config.Accumulate batches on every rank, their reduction,
// and an update. Steps are counted from 0, over all epochs, as the optimizer commits
// them: a run that goes on from a checkpoint goes on counting.
//
// # Stopping
//
// Run asks the model after each step whether all ranks are to stop
// ([github.com/goddp/goddp/ddp.Model.Stopping]). It then saves a checkpoint, if it saves
// any, and returns nil; comm.Main ends the process with the signal's exit code.
package train
