// Command matrix trains the same on several ranks and in a single process, in every
// way that package ddp and those beside it have, and compares the two:
//
//	golaunch --nproc-per-node 2 matrix
//
// test/matrix.sh builds and runs it. The ranks train what a [recipe] says, in each
// of several [way]s; rank 0 trains it by itself on all ranks' samples, without
// package ddp, and twice more with the samples of each step in another order. The
// most that this changes, which is what rounding alone does, is the gap.
//
//	float64  20 steps: each loss, and the final parameters, within 1e-9
//	others   200 steps: each loss, and the final parameters, within three times the gap
//	lossy    200 steps: the last losses at most some part from those of a single
//	         process, for hooks that send less than there is
//
// In all of them the ranks end with the same parameters, to the bit. Losses are
// means over the ranks, compared by |difference|; parameters by ‖difference‖/‖w‖ of
// the worst. A gap is no less than what float32, which all losses of the others are
// computed in, can tell apart. There is a line for each way; the exit code is 1 when
// a limit is missed.
//
// # The network
//
// Linear-ReLU-Linear-ReLU-Linear, 64 wide. Its hidden biases keep the gates of the
// ReLUs open or shut: among many numbers some are within rounding of zero, and a
// gate that two correct programs disagree on moves the gradient by far more than
// rounding does.
//
// # Single processes of fewer bits
//
// In 16 bits the gradient of each rank's part of a batch is rounded, which one pass
// over the whole batch has nothing of. There the single process takes as many
// passes as there are ranks: the gap is that of samples which come to other passes.
// Where ddp adds up in float32 (ReduceDType), a single process does so in a group of
// one.
package main
