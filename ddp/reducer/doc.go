// Package reducer has what programs see of the reducer, which averages gradients over the ranks of a process group
// while the backward pass is still computing others: the errors of a pass, and the hooks by which a program can
// reduce the buckets in its own way. Packages ddp, ddp/zero and ddpgorgonia have the reducer itself.
//
// A bucket is one flat tensor of gradients of one element type ([GradBucket]). The buckets are reduced in place, in
// order of index, each as soon as its gradients are final. A [Hook] does this in place of an all-reduce. It may
// change the gradients in any way: whatever the hook does, the ranks learn of missing gradients and skip the same
// steps. If a hook fails, the group is aborted, as after a failed reduction.
//
// Every rank gets the same error for a pass. A [*MissingGradientError], [*GraphChangedError], [*NonFiniteError] or
// [*LeftError] matches [device.ErrSkipped]: no rank applies the step, and the group remains usable.
package reducer
