// Package data brings samples to a training loop: data sets, readers of common
// files, and a loader that divides every batch among the ranks of a job.
//
//	train, err := data.MNIST("/usr/share/datasets/fashion-mnist", data.Train, nil)
//	if err != nil {
//		return err
//	}
//	loader, err := data.NewLoader(train, pg, data.LoaderOptions{Batch: 64, Shuffle: true})
//	if err != nil {
//		return err
//	}
//	for epoch := range epochs {
//		for batch, err := range loader.Epoch(ctx, epoch) {
//			if err != nil {
//				return err
//			}
//			loss := nn.CrossEntropyLoss(model.Forward(batch.Vars[0]), batch.Vars[1])
//			...
//		}
//	}
//
// # Data sets
//
// A [Dataset] is a fixed number of samples with the same fields: an image and
// its label, say. [MNIST], [CIFAR10], [CIFAR100], [OpenCSV] and [OpenTokens]
// read files, and package data/parquet columns of Parquet files; [Each] makes a data set of
// a function that writes one sample.
//
// Token shards are in llm.c's format. "goddp tokens FILES... -o DIR" makes them of text;
// [WriteTokens] makes one of any tokens.
//
// # Which rank gets what
//
// A [Sampler] decides. In each epoch it puts the samples into an order, which
// is a function of the seed and the epoch alone, and cuts the order into global
// batches of Batch samples for each rank. Rank r takes the r-th part of every
// global batch. So N ranks with batches of B see, step by step, what one
// process with batches of N·B sees.
//
// A [Position] says how far an epoch has come in samples of that order. It
// knows nothing of ranks: a run that is resumed at another number of ranks goes
// on with the first sample that was not yet trained on.
//
// [LastBatch] says what happens where the samples do not fill the last global batch.
//
// # Loading
//
// [Loader.Epoch] reads batches ahead, on goroutines of its own, into page-locked
// memory, and copies them to the device on a stream of their own. The training
// loop waits only if reading is slower than training. On the CPU batches are
// read into the device's memory directly. All goroutines and all memory of an
// epoch end with its loop, also when the loop ends early.
//
// # Errors
//
// Files are checked before they are believed: an error names the file, and the
// offset or the sample. The first error ends an epoch.
package data
