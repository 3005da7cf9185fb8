// Package metrics reduces the numbers that a job reports, such as losses, accuracies and times, over the
// ranks of a process group. One collective reduces all of them:
//
//	got, err := metrics.Reduce(ctx, pg,
//		metrics.Mean(loss, len(batch)),    // weighted by this rank's samples
//		metrics.Mean(accuracy, len(batch)),
//		metrics.Max(seconds),
//	)
//	...
//	fmt.Printf("loss %g over %d samples\n", got[0].Value, got[0].Count)
//
// All ranks get bit-identical results: each rank gathers the numbers of all ranks and combines them in
// rank order, in float64, with integer counts. Batches may be uneven: the mean of means weighted by their
// counts is the mean over all samples, and a rank without samples takes part with a count of 0. If any
// rank's number is NaN, the result is NaN. This also holds for Min and Max, unlike in a reduction on a GPU.
//
// Reduce costs one all-gather of 24 bytes for each metric and rank, and waits for it. A loop that logs
// every few steps can afford that; a loop that logs every step of a few milliseconds cannot.
//
// # Classifiers
//
// [Accuracy] evaluates a model on a data set that is sharded over the ranks. It is built from these
// parts: [Correct] counts the samples whose label is among the k most likely classes, and a [Confusion]
// counts the predicted classes for each true class. With batches that use each sample once (data.Uneven),
// the sum over the ranks counts no sample twice:
//
//	got, err := metrics.Reduce(ctx, pg, metrics.Count(correct), metrics.Count(seen))
//	accuracy := got[0].Value / got[1].Value
package metrics
