// Package data supplies a training loop with samples: data sets, readers of common file formats, and a
// loader that shards every batch over the ranks of a job.
//
//	train, err := data.MNIST("/usr/share/datasets/fashion-mnist", data.Train, nil)
//	if err != nil {
//		return err
//	}
//	loader, err := data.NewLoader(train, pg, &data.LoaderOptions{Batch: 64, Shuffle: true})
//	if err != nil {
//		return err
//	}
//	for epoch := range epochs {
//		for batch, err := range loader.Epoch(ctx, epoch) {
//			if err != nil {
//				return err
//			}
//			loss := nn.CrossEntropyLoss(model.Forward(batch.Vars[0]), batch.Vars[1], nil)
//			...
//		}
//	}
//
// # Data sets
//
// A [Dataset] is a fixed number of samples with the same fields, such as an image and its label.
// [MNIST], [CIFAR10], [CIFAR100], [OpenCSV], [OpenTokens] and [OpenDocuments] read files, and package data/parquet
// reads Parquet files. [Each] makes a data set from a function that writes one sample, and [Mix] one of several sets.
//
// Token shards have llm.c's formats, with tokens of 16 or of 32 bits. "goddp tokens FILES... -o DIR" makes them from
// text files; [WriteTokens] writes any tokens.
//
// # Chats and other documents
//
// [OpenDocuments] reads chats, prompts with completions, and texts from JSON lines. A function of the program turns a
// document into tokens, and says which of them are labels. Package hf/chat has one for the tokenizers and templates of
// Hugging Face:
//
//	set, err := data.OpenDocuments("chats/*.jsonl", 4096, chat.Documents(tok, template), &data.DocumentsOptions{Pack: true})
//
// Without Pack, a row is a document, and the rows of a batch are padded to the longest. With Pack, a row has as many
// documents as fit in, so that little is computed for padding. Attention then has to stay within the documents, and
// positions begin with each. A step computes the mean over all labels with train.Config's SumLoss:
//
//	tokens, next, positions, starts := b.Vars[0], b.Vars[1], b.Vars[2], b.Vars[3]
//	loss := model.Run(func() *autograd.Variable { // a ddp.Model of net, which is a decoder.Model
//		return net.Loss(tokens, next, &decoder.ForwardOptions{
//			Positions: positions, Starts: starts,
//			Loss: autograd.LinearLossOptions{IgnoreIndex: &ignored, Sum: true}, // ignored is NotALabel
//		})
//	})
//
// On a GPU, the loss also computes the rows without labels unless its MaxRows says how many have one: at most Batch times
// MaxLabels of [Documents.Stats].
//
// The documents are packed once, by best fit within a window of [DocumentsOptions]. Rows, and so what a [Position] means,
// depend on the files, the length and the options, and not on the number of ranks. Keep them for a run that is resumed.
//
// # The samples of each rank
//
// A [Sampler] divides the samples. In each epoch it orders them by a permutation that depends only on the
// seed and the epoch, and splits the order into global batches, by default with Batch samples per rank. Rank r takes
// the r-th part of every global batch. So in each step N ranks with batches of B samples use the same samples
// as one process with batches of N·B samples.
//
// A [Position] is the number of samples of that order used so far. It does not depend on the number of
// ranks: a run that is resumed with another number of ranks continues with the first unused sample. Its
// [Source] identifies the order: a loader with another data set, Shuffle or Seed rejects it.
// [Loader.Position] returns the position after the latest batch. The number of ranks may change between two epochs'
// loops: a loader reads it when a loop begins.
//
// [LastBatch] selects what happens to samples that do not fill the last global batch.
//
// # The same global batch with any number of ranks
//
// With GlobalBatch of [LoaderOptions], the number of ranks does not change the samples of a step. 128 samples are 32 for
// each of 4 ranks, and 43, 43 and 42 for 3 ranks. A rank gets its part in micro-batches of at most Batch samples.
// train.Run needs nothing else. Another loop weights the mean loss of each micro-batch, and reduces the gradients once
// in a step:
//
//	loss := autograd.MulScalar(lossOf(model, batch), batch.Weight)
//	if !batch.EndsStep {
//		if err := model.NoSync(func() error { return loss.Backward(nil) }); err != nil {
//			return err
//		}
//		continue
//	}
//	if err := loss.Backward(nil); err != nil {
//		return err
//	}
//	if err := opt.Step(); err != nil {
//
// Then the gradients are those of the mean loss of the global batch. Runs with different numbers of ranks make the same
// steps, up to rounding. They still differ in random numbers, such as those of Dropout, and in layers that compute
// over the samples of a micro-batch, such as BatchNorm.
//
// # The mean over the labels of a step
//
// If samples have different numbers of labels, the mean of the means of micro-batches is not the mean over all labels: a
// label counts more if its micro-batch has few. Hugging Face's num_items_in_batch is about the same. The loader of a
// [Labeled] data set knows the labels of the whole global batch. train.Run with SumLoss needs nothing else. Another loop
// weights the sum of the losses, of each micro-batch as above:
//
//	loss := autograd.MulScalar(sumOfLosses(model, batch), batch.LabelWeight)
//
// A micro-batch or a rank without labels then adds nothing: the sum of no losses is 0, but their mean is NaN.
//
// # Loading
//
// [Loader.Epoch] reads batches ahead on separate goroutines into page-locked memory, and copies them
// to the device on a separate stream. The training loop waits only if reading is slower than
// training. On the CPU, batches are read directly into the device's memory. When the loop over an
// epoch ends, even early, its goroutines end and its memory is freed.
//
// # Errors
//
// Readers open only regular files, and validate their content. An error names the file, and the offset, line or
// sample. The first error ends an epoch.
package data
