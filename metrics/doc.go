// Package metrics reduces the numbers that a job reports, losses, accuracies,
// times, over the ranks of a process group, in one collective for all of them:
//
//	got, err := metrics.Reduce(ctx, pg,
//		metrics.Mean(loss, len(batch)),    // weighted by this rank's samples
//		metrics.Mean(accuracy, len(batch)),
//		metrics.Max(seconds),
//	)
//	...
//	fmt.Printf("loss %g over %d samples\n", got[0].Value, got[0].Count)
//
// Every rank gets the same bits: the numbers of all are gathered, and each rank
// combines them in order of rank, in float64, with counts as integers. Batches may
// be uneven: the mean of means weighted by their counts is the mean over all
// samples, and a rank that has none takes part with a count of 0. A NaN of one
// rank is a NaN in the result, of Min and Max too, which a reduction on a GPU may
// hide.
//
// The cost is one all-gather of 24 bytes for each metric and rank, and a wait for
// it: what a loop that logs now and then can afford, not one that logs every step
// of a few milliseconds.
//
// # Classifiers
//
// [Accuracy] evaluates a model on a data set that is divided among the ranks. Its parts:
// [Correct] counts the samples whose label is among the k classes that a model
// thinks most likely, and a [Confusion] what it took for what. With batches that
// give each sample once (data.Uneven), the sum over the ranks counts no sample
// twice:
//
//	got, err := metrics.Reduce(ctx, pg, metrics.Count(correct), metrics.Count(seen))
//	accuracy := got[0].Value / got[1].Value
package metrics
