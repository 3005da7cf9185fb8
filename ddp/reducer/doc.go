// Package reducer is the public part of the reducer, which averages gradients over the ranks of a process group
// while the backward pass still computes others. It holds the errors of a pass and the communication hooks, with
// which a program reduces the buckets itself. Packages ddp, ddp/zero and ddpgorgonia run the reducer.
//
// A bucket is one flat tensor of gradients of one element type ([GradBucket]). The buckets are reduced in place, in
// order of index, each as soon as its gradients are final. A [Hook] replaces the all-reduce. It may change the
// gradients in any way: the ranks exchange the flags for missing gradients separately, so they skip the same steps
// whatever the hook does. If a hook fails, the group is aborted, as after a failed reduction.
//
// Every rank gets the same error for a pass. A [*MissingGradientError], [*GraphChangedError], [*NonFiniteError] or
// [*LeftError] matches [device.ErrSkipped]: no rank applies the step, and the group remains usable.
package reducer
