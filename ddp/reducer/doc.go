// Package reducer averages gradients over the ranks of a process group while
// they are still being computed. It knows communication and nothing of
// autograd: an engine joins by calling these methods.
//
//	r, err := reducer.New(ctx, pg, params, nil) // params in order of registration
//	...
//	r.Begin(true, nil)     // a backward pass starts; false: accumulate, do not reduce
//	  dst := r.Grad(i)     // where gradient i lives: a view of its bucket
//	  r.Fresh(i)           // first write since Zero: overwrite; else add
//	  r.Scale()            // factor for the pass's last write of each gradient
//	  r.Ready(i, event)    // gradient i is final on the compute stream at event
//	err = r.Finish(ctx, nil) // the pass is over: what is known to be missing, or to have failed
//	...                    // enqueue what uses the gradients and reads r.Flags()
//	err = r.Err()          // the outcome, on every rank the same
//
// # Buckets
//
// Gradients live in buckets from the first step on: one flat tensor each, of
// one element type, allocated by the group. Buckets are filled by PyTorch's
// rule in reverse order of registration, which is about the order in which
// gradients become final, and reduced strictly in order of index, each as
// soon as it is complete and those before it have been started, the last one at
// the end of the pass. A view starts on [device.Align] bytes, and a bucket is padded
// with zeros to a multiple of Align bytes a rank.
//
// What the ranks tell each other in a pass is the status: two words per rank, its
// flag and its excuse, two by which any rank asks all to stop, and where unused parameters
// are found one word per parameter.
// It is where the padding of the last bucket begins. Where that one, of several, has
// 4 MiB of gradients or more, or a hook reduces the buckets, the status has memory and
// a small reduction of its own, just before the last bucket's. Options.BeforeLast has
// a place there for what else all ranks do in each pass.
//
// The order of registration is a guess. Behind the first pass that reduces, rank 0
// tells all ranks the order in which its gradients became final; nobody waits for
// it. Where the next one begins, every rank puts the parameters into buckets by
// that order. If they are others than those in use, the gradients move there, with
// what has accumulated in them; it happens once. Views that were got before are
// then of memory that is not used any more. If one rank has no memory for the new
// buckets, all keep the old ones. A pass that rank 0 did not complete tells no
// order, and the one behind it is asked.
//
// # Missing gradients
//
// A rank that finishes a pass without some gradient, in whichever bucket, or
// whose pass failed, raises its flag and reduces all the same, so that nobody
// waits for it. The status travels last, or just before the last bucket, which is why
// that one is launched at the very end: one set of flags can tell of everything. Once
// summed they tell every rank, and its optimizer, that this step must not be applied;
// the [*MissingGradientError] of that pass names the ranks and the parameters on
// every rank. The group stays usable and the next pass starts afresh.
//
// A pass that reduces nothing, and fails, has told nobody. What accumulated is spoilt
// then ([Reducer.Fail]), and unless the program zeroes it the next pass that reduces
// raises this rank's flag.
//
// # Unused parameters
//
// With Options.Unused a gradient that a pass does not write is no error. Begin is
// told which gradients the pass will write. The places of the others are made to
// add nothing, so that no bucket waits for them, and each rank tells the others, in
// its words of the status, which gradients it has: of this pass, or of earlier
// ones. What one rank has, all have: where it was unused on this rank alone, it is
// the average all the same. What no rank has stays zeroed: [Reducer.Zeroed], which
// waits for the outcome where only that tells. And what all ranks had before the
// pass stays as it was, to the rounding of a division by the number of ranks and a
// sum.
//
// UnusedFixed asks once. From the first pass that succeeds all ranks know which
// gradients there are, so that later ones neither tell nor wait; a pass that is
// to write others is a [*GraphChangedError] on every rank, found where it begins,
// before any of its buckets is reduced. Between [Reducer.Join] and [Reducer.Leave]
// they go on to tell and wait, for a rank without passes uses nothing. With UnusedFound the buckets are not
// rebuilt: a pass may have another order than the one before.
//
// # Shadows
//
// Between [Reducer.Join] and [Reducer.Leave] ranks may have different numbers of
// passes. Who has none makes a [Reducer.Shadow] for each pass of the others: it
// starts what they start, with zeros, and tells so in the status, by a word for each
// rank behind the flags. When all words are set no rank has a pass to make any more,
// so that a pass needs no other collective, and the end of all of them takes one pass
// of zeros. A shadow with its flag raised is a rank's last: that pass is a
// [*LeftError] on every rank, and nobody makes another.
//
// Who has made a pass is known with its outcome. On a GPU that is later than the
// pass's own divisions, which is why averages over those ranks alone are made behind
// it, by a factor, and why Finish then waits.
//
// # Stopping
//
// A rank that was asked to stop by SIGTERM or SIGINT adds one to that signal's word in
// each pass that it finishes, a shadow too, until it sees such a word set in the sum. All
// ranks see it with the outcome of the same pass ([Reducer.Stopping]), be that a success or
// not. A pass whose reductions fail decides nothing.
//
// # Hooks
//
// A [Hook] reduces buckets in place of the all-reduce. It may do with them what it
// likes, as the status goes by itself: whatever the hook makes of the gradients, the
// ranks know of each other's missing ones, and skip together. What a hook cannot do
// breaks the group, as a reduction that fails does.
//
// # Gradients that are not finite
//
// With Options.CheckNonFinite the compute stream looks at each gradient once it
// is final, before its bucket is reduced. At the end of the pass, before the last
// bucket, the host waits for what it found: a rank that has a NaN or an infinity
// reports and raises its flag as one that lacks a gradient does, and the pass is a
// [*NonFiniteError] on every rank.
//
// # The outcome
//
// On a GPU nothing waits for the reductions on the host. The optimizer's kernels
// read the flags where they are ([Reducer.Flags]), and a copy of them is on its
// way to the host while those run: Finish returns what this rank knows of
// itself, and [Reducer.Err] the outcome, which it may have to wait for. An
// outcome that nobody asks for makes the next pass fail.
//
// A status of its own, without a hook, is there before the last gradients are. The
// compute stream then waits for no reduction but the status's, until somebody uses a
// gradient: [Reducer.Settle] has it wait for that bucket alone, and the updates of all
// others hide behind the last reduction.
//
// # Structure
//
// The decisions (what to launch when, what is missing, when to ask for the order)
// are a pure core in core.go, told events and answering with actions; its tests are
// the scenarios in testdata.
package reducer
