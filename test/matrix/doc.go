// Command matrix trains the same network on several ranks and in a single process, in every way that
// package ddp and the packages beside it offer, and compares the results:
//
//	golaunch --nproc-per-node 2 matrix
//
// test/matrix.sh builds and runs it. A [recipe] says what the ranks train, and several [way]s say how.
// Rank 0 trains the recipe in a single process too, on all ranks' samples and without package ddp; and
// twice more with the samples of each step in another order. The largest difference that another order
// makes is the gap: the effect of rounding alone.
//
//	float64  20 steps: each loss and the final parameters differ by at most 1e-9
//	others   200 steps: each loss and the final parameters differ by at most three times the gap
//	lossy    200 steps, for hooks that send fewer bits: the last losses differ by at most a part that
//	         the way states
//
// In every way the ranks must end with bit-identical parameters. Losses are means over the ranks,
// compared by |difference|. Parameters are compared by ‖difference‖/‖w‖ of the worst parameter. The gap
// of the losses is at least the resolution of float32, in which all losses but those of float64 are
// computed. The command prints a line for each way. Its exit code is 1 if a way misses a limit.
//
// # The network
//
// The network is Linear-ReLU-Linear-ReLU-Linear, 64 wide. The biases of its hidden layers keep each
// ReLU open or shut. Without them, some of the many inputs of the ReLUs would be so close to zero that
// rounding opens or shuts a ReLU, which changes the gradient far more than rounding itself does.
//
// # Single processes in 16 bits
//
// In 16 bits, the gradient of each rank's part of a batch is rounded; one pass over the whole batch has
// no such rounding. So the single process makes as many passes as there are ranks, and the gap is that
// of samples that move to other passes. If ddp adds up in float32 (ReduceDType), the single process
// does so too, in a group of one.
package main
