// Package ddpgorgonia trains expression graphs of Gorgonia (gorgonia.org/gorgonia) on several
// processes. The graph, the solver and the training loop remain Gorgonia's. Two things change: the graph uses
// Model.Use(w) in place of a learnable w, and NewTapeMachine of the model makes the machine:
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
// examples/gorgonia is a whole program, next to the same program for a single process.
//
// # How gradients are reduced
//
// Gorgonia differentiates symbolically: a gradient is a node of the graph, and a machine runs all
// nodes in one tape. [Model.Use] inserts an identity operation between a learnable and the graph.
// When Gorgonia differentiates the identity, it has already summed the gradient over all uses of
// the learnable, and the identity adds a node that takes this sum. When the tape runs that node, it
// writes the gradient to its place in a bucket. A complete bucket is reduced by a goroutine of the
// group, while the tape goes on with the layers before. RunAll returns when the averages are
// complete; the learnables' Grad is a view of the buckets. A gradient that is a product of two
// matrices is computed directly in the bucket, without a copy.
//
// The nodes of the gradients run in the reverse of the order in which the graph was built. So call
// Use where the graph uses the learnable, and not for all learnables beforehand. If the last layer
// is smaller than those before it, choose an [Options.FirstBucketCapMB] that the last layer alone
// fills: the first reduction then starts after this layer.
//
// NewTapeMachine compiles only the nodes that the learnables' gradients and the graph's results
// need (CompileFunction); the program of Gorgonia's Compile also computes the gradient of the
// input. Do not use BindDualValues: it copies each gradient before it is reduced. RunAll refuses
// such gradients.
//
// # Accumulation
//
// A run that reduces overwrites the gradients of the run before. Runs within [Model.NoSync] do not
// reduce; the next run after them reduces the sum of their gradients and its own. Solvers zero a
// gradient after they have used it. Here the zeroing costs time and has no effect.
//
// # Batches
//
// If all ranks have the same number of samples, the average of the ranks' mean costs is the mean cost of
// the global batch. Graphs have fixed shapes, so fill up a smaller or uneven batch with
// samples of weight zero: let the cost be the sum of the samples' costs, each times a weight that
// is an input. The weight is ranks/samples for the samples of a global batch and 0 for the others.
// Then the average over the ranks is the mean cost of the global batch, even if a rank has no sample.
//
// # Solvers
//
// Gorgonia's solvers use the averages and make the same step on all ranks. As of v0.9.18
// VanillaSolver, Momentum, AdamSolver and RMSPropSolver are correct. These are not:
//
//   - AdamW changes no value, and panics on values that are not a *Node. Use optim.NewAdamW with
//     [Model.Parameters], or AdamSolver with WithL2Reg, which is a different method.
//   - AdaGradSolver ignores WithLearnRate: its rate is 0.001. Use RMSPropSolver.
//   - BarzilaiBorweinSolver produces NaN for a quadratic cost. Use Momentum.
//
// The optimizers of package optim work on [Model.Parameters]: the learnables by name, in the memory
// of their values. They allocate nothing after the first step, their states can be saved, and they
// refuse the gradients of a failed run. Do not give a learnable a new value by G.Let after New: the
// optimizer would not see it. Copy into the existing value instead.
//
// # Errors
//
// RunAll returns the error of a failed reduction, for errors.Is and errors.As (comm.ErrPeerLost,
// comm.ErrTimeout). Gorgonia's machines wrap errors in a type without Unwrap, so the operations of
// this package also store their errors in the model. Once a reduction has failed, the next gradient ends
// the tape, so that a program with asynchronous error handling can return before the process is
// ended.
//
// Operations run on a goroutine of the machine, where a panic would end the process. If an
// operation of this package panics, RunAll panics with the same value, on the program's goroutine.
//
// If the tape of one rank fails, all ranks get a [*reducer.MissingGradientError], no rank steps,
// and the group remains usable. New returns a [*reducer.ModelMismatchError] if the learnables
// differ between ranks. A [*GraphError] says that a graph cannot be trained.
//
// # Speed
//
// Gorgonia computes matrix products with gonum, which is slow. [UseBLAS] makes it use OpenBLAS, if
// that is found at run time, with this rank's share of the host's cores. Gorgonia computes only on
// the CPU: on a machine with GPUs set GODDP_DEVICE=cpu.
//
// # Several ranks in one process
//
// Machines of several ranks may run at the same time in one process, as in tests with comm.Local.
// Graphs must not be built at the same time: see [Build]. Ranks never share values.
package ddpgorgonia
