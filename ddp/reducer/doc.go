// Package reducer averages gradients over the ranks of a process group while the backward pass is
// still computing others. It uses package comm and knows nothing of autograd. An autograd engine
// calls these methods:
//
//	r, err := reducer.New(ctx, pg, params, nil) // params in order of registration
//	...
//	r.Begin(true, nil)     // a backward pass starts; false: it accumulates without reducing
//	  dst := r.Grad(i)     // the memory of gradient i: a view of its bucket
//	  r.Fresh(i)           // true: the first write since Zero, which must overwrite; false: add
//	  r.Scale()            // the factor for the last write of each gradient in the pass
//	  r.Ready(i, event)    // gradient i is final on the compute stream at event
//	err = r.Finish(ctx, nil) // the pass has ended; returns what is known to be missing or failed
//	...                    // enqueue kernels that use the gradients and read r.Flags()
//	err = r.Err()          // the outcome, the same on every rank
//
// # Buckets
//
// Gradients are in buckets from the first step on. A bucket is one flat tensor of one element type,
// allocated by the group. The reducer fills buckets by PyTorch's rule in reverse order of
// registration, which is roughly the order in which gradients become final. It reduces them strictly in
// order of index: each bucket as soon as it is complete and the ones before it are started, the
// last one at the end of the pass. Each view starts at a multiple of [device.Align] bytes, and a bucket
// is padded with zeros to a multiple of Align bytes per rank.
//
// Each pass also reduces the status. It has two words per rank (its flag and its shadow flag), two
// words by which any rank asks all to stop, and, if unused parameters are looked for, one word per
// parameter. The status is the first part of the padding of the last bucket. If a hook reduces the
// buckets, or if the last of several buckets has 4 MiB of gradients or more, the status has its own
// memory, and a small reduction just before that of the last bucket. Options.BeforeLast is called at
// that point, for other communication that all ranks do in each pass.
//
// The order of registration is a guess. After the first pass that reduces, rank 0 sends all ranks the
// order in which its gradients became final; no rank waits for it. When the next reducing pass
// begins, every rank assigns the parameters to buckets by that order. If the result differs from the
// buckets in use, the gradients move to the new buckets, with everything that has accumulated. This
// happens once. Earlier views then refer to memory that is no longer used. If one rank has no memory
// for the new buckets, all ranks keep the old ones. If rank 0 did not complete the pass, it sends the
// order after the next one.
//
// # Missing gradients
//
// If a rank finishes a pass without some gradient, or its pass failed, it raises its flag. It still
// reduces all buckets, so that no rank waits for it. The status travels with the last bucket or just
// before it, and the last bucket is launched at the very end, so one set of flags covers the whole
// pass. The sum of the flags tells every rank, and every optimizer, that this step must not be applied.
// The [*MissingGradientError] of that pass names the ranks and the parameters on every rank. The group
// remains usable, and the next pass starts normally.
//
// A pass that only accumulates cannot tell the other ranks of a failure. Its gradients are then
// invalid ([Reducer.Fail]). Unless the program zeroes them, this rank raises its flag in the next pass
// that reduces.
//
// # Unused parameters
//
// With Options.Unused it is not an error if a pass does not write some gradients. The engine passes
// to Begin which gradients the pass will write. The reducer makes the others contribute zero, so no
// bucket waits for them. Each rank publishes, in its words of the status, which gradients it has from
// this pass or earlier ones. A gradient that at least one rank has is averaged, and afterwards all ranks
// have it. A gradient that no rank has stays zeroed: see [Reducer.Zeroed], which waits for the outcome
// if that is needed. A gradient that all ranks had before the pass keeps its value, except for the
// rounding of a division by the number of ranks and a sum.
//
// With UnusedFixed this exchange happens once. From the first successful pass on, all ranks know which
// gradients there are, so later passes do not exchange them. If a pass is going to write others,
// every rank gets a [*GraphChangedError]; the rank finds this when the pass begins, before it reduces
// any bucket. Between [Reducer.Join] and [Reducer.Leave] the exchange continues, because a rank without
// passes uses nothing. With UnusedFound the buckets are not rebuilt, because each pass may have another
// order.
//
// # Shadow passes
//
// Between [Reducer.Join] and [Reducer.Leave] ranks may make different numbers of passes. A rank that
// has no more passes makes a [Reducer.Shadow] pass for each pass of the others: it starts the same
// reductions with zeros, and sets its shadow flag in the status. When all shadow flags are set, no rank
// has a pass left. This takes one extra pass of zeros at the end, and no other collective. A shadow pass
// with its flag raised is the last pass of that rank: all ranks get a [*LeftError] and make no more
// passes.
//
// The outcome of a pass tells which ranks made it. On a GPU this is known only after the gradients
// were divided. Averages over these ranks only are therefore computed afterwards, by another factor, and
// Finish then waits for the outcome.
//
// # Stopping
//
// A rank that was asked to stop by SIGTERM or SIGINT adds one to the word of that signal in each pass
// that it finishes, also in shadow passes, until it sees such a word set in the sum. All ranks see it
// with the outcome of the same pass ([Reducer.Stopping]), whether that pass succeeded or was skipped. A
// pass whose reductions fail does not decide anything.
//
// # Hooks
//
// A [Hook] reduces the buckets in place of the all-reduce. It may change the gradients in any way,
// because the status is reduced separately: with any hook, the ranks learn of missing gradients
// and skip the same steps. If a hook fails, it breaks the group, as a failed reduction does.
//
// # Gradients that are not finite
//
// With Options.CheckNonFinite the compute stream checks each gradient when it is final, before its
// bucket is reduced. Before the last bucket, the host waits for the result. A rank that has a NaN or an
// infinity raises its flag, as for a missing gradient, and the pass ends with a [*NonFiniteError] on
// every rank.
//
// # The outcome
//
// On a GPU the host does not wait for the reductions. The optimizer's kernels read the flags on the
// device ([Reducer.Flags]). Meanwhile the flags are copied to the host. Finish returns the errors that
// this rank knows by itself. [Reducer.Err] returns the outcome, for which it may have to wait. If the
// program does not ask for the outcome, the next pass fails with it.
//
// If the status has its own memory and there is no hook, its reduction ends before the last
// gradients are reduced. The compute stream then waits only for the status. When a gradient is used,
// [Reducer.Settle] makes the compute stream wait for that gradient's bucket. The optimizer's updates
// of all other buckets run during the last reduction.
//
// # Structure
//
// The decisions (which bucket to launch when, what is missing, when to send the order) are made by a
// pure core in core.go, which maps events to actions. Its tests are the scenarios in testdata.
package reducer
