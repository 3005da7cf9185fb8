// Package ddpgorgonia trains expression graphs of Gorgonia (gorgonia.org/gorgonia)
// on several processes. The graph, the solver and the training loop stay
// Gorgonia's own; what changes is what the graph uses for a learnable, and how
// its machine is made:
//
//	pg, err := comm.Init(ctx, nil)
//	...
//	model, err := ddpgorgonia.New(pg, G.Nodes{w0, w1}, nil) // compared; set to rank 0's values
//	h := G.Must(G.Mul(x, model.Use(w0)))                    // not G.Mul(x, w0)
//	...
//	vm, err := model.NewTapeMachine(cost)                   // not G.Grad and G.NewTapeMachine
//	for x, y := range batches {
//		... G.Let ...
//		if err := vm.RunAll(); err != nil { // gradients are reduced here, overlapped
//			return err
//		}
//		if err := solver.Step(G.NodesToValueGrads(G.Nodes{w0, w1})); err != nil {
//			return err
//		}
//		vm.Reset()
//	}
//
// examples/gorgonia is a whole program, and shows it as a difference to one of a
// single process.
//
// # What happens when
//
// Gorgonia differentiates symbolically: a gradient is a node like any other, and a
// machine runs them all in one tape. [Model.Use] puts an identity between a
// learnable and the graph; where Gorgonia differentiates that, it has summed up the
// learnable's gradient, wherever in the graph it is used, and the identity puts a
// node of its own behind the sum. When the tape comes there, the gradient is
// written to its place in a bucket, and a bucket that is complete begins to be
// reduced, by the group's own goroutine, while the tape goes on with the layers
// before. RunAll returns when the averages are there: the learnables' Grad is the
// memory of the buckets. A gradient that is a product of two matrices in itself is
// computed there, without a copy.
//
// Nodes of a gradient run in the order, reversed, in which what they belong to was
// made: call Use where the graph uses the learnable, not for all beforehand.
// Where the last layer is smaller than those before it, an
// [Options.FirstBucketCapMB] that it fills has the first reduction begin behind
// it, not behind one of theirs.
//
// NewTapeMachine has Gorgonia compile only what the learnables' gradients and the
// graph's results need (CompileFunction); a machine of Compile computes the gradient
// for the input too. Make it without BindDualValues, which copies and adds up each
// gradient once more, before it is reduced; RunAll refuses such gradients.
//
// # Accumulation
//
// A run that reduces overwrites the gradients of the one before. Runs within
// [Model.NoSync] reduce nothing, and the next one after them reduces the sum of all
// of them and itself. Solvers zero a gradient that they have used, which costs a
// pass over it and changes nothing here.
//
// # Batches
//
// The average over the ranks of means over their own batches is the mean over the
// global batch where ranks have equally many samples. Graphs have fixed shapes, so
// that a batch that is smaller, or divides unevenly, fills up with samples that
// weigh nothing: let the cost be the sum of the samples' costs, each times a weight
// that is an input, ranks/samples for the samples of a global batch and 0 for what
// fills it up. Averaged over the ranks that is the mean, also where a rank has no
// sample at all.
//
// # Solvers
//
// Gorgonia's solvers step on the averages, alike on all ranks. As of v0.9.18
// VanillaSolver, Momentum, AdamSolver and RMSPropSolver compute what their names
// say. These do not:
//
//   - AdamW changes nothing and panics on what is no *Node: use optim.NewAdamW with
//     [Model.Parameters], or AdamSolver with WithL2Reg, which is not the same.
//   - AdaGradSolver ignores WithLearnRate: its rate is 0.001. Use RMSPropSolver.
//   - BarzilaiBorweinSolver makes NaN of a quadratic. Use Momentum.
//
// This project's optimizers (package optim) work on [Model.Parameters], the
// learnables by their names in the memory of their values. They allocate nothing
// after the first step, their states can be saved, and they refuse the gradients of
// a run that failed. A value that G.Let gives a learnable after New is not theirs:
// copy into the one that is there.
//
// # Errors
//
// RunAll returns the failure of a reduction as it is, for errors.Is and errors.As
// (comm.ErrPeerLost, comm.ErrTimeout): Gorgonia's machines wrap errors in one that
// hides them, so that operations leave theirs beside the machine. Once a reduction
// has failed, the next gradient ends the tape, so that a program in asynchronous
// error handling can return by itself before it is ended.
//
// Operations run on a goroutine of the machine's, where a panic ends the process
// and nobody can recover it. A panic of what this package has a part in is one of
// RunAll's, on the program's own goroutine.
//
// A rank whose tape fails tells the others: all get a
// [*reducer.MissingGradientError], none steps, and the group stays usable.
// Learnables that differ between ranks are a [*reducer.ModelMismatchError] from New,
// and what a graph cannot be is a [*GraphError].
//
// # Speed
//
// Gorgonia computes matrix products by gonum, slowly. [UseBLAS] has it use OpenBLAS
// where that is found at run time, with this rank's share of the host's cores. Only
// hosts compute here: on a machine with GPUs, GODDP_DEVICE=cpu makes a group of the
// host's.
//
// # Several ranks in one process
//
// Machines of several ranks may run at the same time, as tests with comm.Local have
// them. Building graphs may not: see [Build]. Values are never shared between ranks.
package ddpgorgonia
