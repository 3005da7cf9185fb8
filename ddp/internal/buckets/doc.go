// Package buckets averages gradients over the ranks of a process group while the backward pass is
// still computing other gradients. It uses package comm and knows nothing of autograd. The
// engine, which is package ddp or ddpgorgonia, calls these methods:
//
//	r, err := buckets.New(ctx, pg, params, nil) // params in order of registration
//	...
//	r.Begin(true, nil)     // a backward pass starts; false: it accumulates without reducing
//	  r.Settle(i)          // the compute stream waits for the last pass to finish gradient i
//	  dst := r.Grad(i)     // the memory of gradient i: a view of its bucket
//	  r.State(i).Write()   // true: the engine must overwrite gradient i; false: it must add to it
//	  r.Scale()            // the last write of a gradient multiplies the whole gradient by this factor
//	  r.Ready(i, event)    // gradient i is final once the compute stream reaches event
//	err = r.Finish(ctx, nil) // the pass has ended; returns the errors that this rank knows already
//	...                    // enqueue kernels that use the gradients and read r.Flags()
//	err = r.Err()          // the outcome, the same on every rank
//
// # Buckets
//
// Gradients are in buckets from the first step on. A bucket is one flat tensor of one element type,
// allocated by the group. The reducer fills buckets by PyTorch's rule in reverse order of
// registration, which is roughly the order in which gradients become final. It reduces them strictly in
// order of index. A bucket's reduction starts as soon as the bucket is complete and the reductions of
// all earlier buckets have started. The last bucket's reduction starts at the end of the pass. Each view
// starts at a multiple of [device.Align] bytes, and a bucket is padded with zeros to a multiple of Align
// bytes per rank.
//
// Each pass also reduces the status. The status has two words per rank (its flag and its shadow flag),
// three words by which any rank asks all ranks to stop, and, if the reducer looks for unused parameters,
// one word per parameter. The status is the first part of the padding of the last bucket. If a hook
// reduces the buckets, or if the last of several buckets has 4 MiB of gradients or more, the status has
// its own memory and its own small reduction, which starts just before the reduction of the last bucket.
// The reducer calls Options.BeforeLast at this point, for other communication that all ranks do in each
// pass.
//
// Reverse order of registration is only an estimate. After the first pass that reduces, rank 0 sends all
// ranks the order in which its gradients became final; no rank waits for this message. When the next
// reducing pass begins, every rank assigns the parameters to buckets by that order. If the result differs
// from the buckets in use, the reducer copies all accumulated gradients to the new buckets. This happens
// once. Earlier views then refer to memory that is no longer used. If one rank has no memory for the new
// buckets, all ranks keep the old buckets. If rank 0 did not complete its first pass, it sends the order
// after its next pass.
//
// # Missing gradients
//
// If a rank finishes a pass without some gradient, or its pass failed, the rank raises its flag: it sets
// its flag in the status to one. It still reduces all buckets, so that no other rank waits for it. The
// status is reduced at the end of the pass, so one set of flags covers the whole pass. The sum of the
// flags tells every rank, and every optimizer, that this step must not be applied. Every rank gets a
// [*reducer.MissingGradientError] for this pass, which names the ranks and the parameters. The group remains
// usable, and the next pass starts normally.
//
// A pass that only accumulates cannot tell the other ranks of a failure. Its gradients are then invalid
// ([Reducer.State]). Unless the program zeroes them, this rank raises its flag in the next pass that
// reduces.
//
// # Unused parameters
//
// With Options.Unused it is not an error if a pass does not write some gradients. The engine tells Begin
// which gradients the pass will write. The reducer makes all other gradients contribute zero, so no
// bucket waits for them. Each rank publishes, in the words for parameters, which gradients it has from
// this pass or earlier passes. If at least one rank has a gradient, the gradient is averaged and
// afterwards all ranks have it. If no rank has a gradient, it stays zeroed. If all
// ranks have an equal gradient before the pass, and no rank writes it in the pass, the gradient keeps its
// value, except for rounding.
//
// With UnusedFixed, the static graph, this exchange ends with the first successful pass. Then all ranks
// know for which parameters some rank has a gradient. If a later pass of a rank will write other
// gradients than the first successful pass, every rank gets a [*reducer.GraphChangedError]. The rank itself
// notices the change when the pass begins, before it reduces any bucket. Between [Reducer.Join] and
// [Reducer.Leave] the exchange continues, because a rank that makes a shadow pass uses no parameter. With
// UnusedFound the buckets are not rebuilt, because each pass may have another order.
//
// # Shadow passes
//
// Between [Reducer.Join] and [Reducer.Leave] ranks may make different numbers of passes. A rank that has
// no more passes makes a [Reducer.Shadow] pass for each pass of the other ranks: it starts the same
// reductions with zeros, and sets its shadow flag in the status. When all shadow flags are set, no rank
// has a pass left. This takes one extra pass of zeros at the end, and no other collective. If a rank
// raises its flag in a shadow pass, the rank leaves: this pass is the last pass of all ranks, and all
// ranks get a [*reducer.LeftError].
//
// The outcome of a pass tells which ranks computed gradients in it. On a GPU this is known only after
// the gradients were divided by the number of all ranks. If averages are wanted over only the ranks
// that computed gradients, Finish waits for the outcome and then corrects the averages by a factor.
//
// # Stopping
//
// If a rank receives SIGTERM or SIGINT, it sets the word of this signal in the status of each pass that
// it finishes and that reduces, shadow passes included, until the sum of such a word is not zero. All
// ranks learn this from the outcome of the same pass ([Reducer.Stopping]), whether the pass succeeded or
// was skipped. If the reductions of a pass fail, the ranks do not agree to stop in this pass.
//
// # Hooks
//
// A [reducer.Hook] reduces the buckets in place of the all-reduce. It may change the gradients in any way,
// because the reducer reduces the status itself. Whatever the hook does, the ranks learn of missing
// gradients and skip the same steps. If a hook fails, the group is aborted, as after a failed reduction.
//
// # Gradients that are not finite
//
// With Options.CheckNonFinite the compute stream checks each gradient when it is final, before its bucket
// is reduced. Before the reduction of the last bucket, the host waits for the results of the checks. A
// rank that has a NaN or an infinity raises its flag, as for a missing gradient, and the pass ends with a
// [*reducer.NonFiniteError] on every rank.
//
// # The outcome
//
// The outcome of a pass is an error, or nil if the gradients may be used. On a GPU the host does not wait
// for the reductions. The optimizer's kernels read the flags on the device ([Reducer.Flags]). Meanwhile
// the flags are copied to the host. If this rank raised its flag, Finish waits for the outcome. Otherwise
// Finish returns without it. [Reducer.Err] returns the outcome, and may have to wait for it. If the
// program does not call Err and the outcome is an error, the next pass fails with this error.
//
// If the status has its own memory and there is no hook, the reducer reduces the status before the
// last bucket. Finish then makes the compute stream wait for the reduction of the status, but not for the
// reduction of the last bucket. (With [comm.BlockingWait], Finish makes it wait for both.) Before the
// program uses a gradient, [Reducer.Settle] makes the compute stream wait for that gradient's bucket. So
// the optimizer can update the parameters of the other buckets during the last reduction.
//
// # Structure
//
// A pure state machine in core.go, the core, decides when to launch each bucket, which gradients are
// missing and when to send the order. It maps events to actions. Its tests are the scenarios in testdata.
package buckets
