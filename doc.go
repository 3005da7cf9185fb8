// Package goddp is the root of a module for distributed data parallel training in Go: several
// processes train one model, each on its own shard of every batch, and average their gradients
// bucket by bucket while the backward pass is still running.
//
// The root has no code. A program imports
//
//   - comm: process groups and collectives,
//   - ddp: the wrapper around a model, with ddp/zero and ddp/commhook,
//   - autograd, nn, optim, amp: gradients, layers, update rules, loss scaling,
//   - data, checkpoint, metrics, progress, train: everything around a training loop,
//
// and golaunch starts it, once for each device:
//
//	go run github.com/goddp/goddp/cmd/golaunch --nproc-per-node 4 ./train
//
// The example is a complete training on two ranks, which are goroutines here and processes under
// golaunch. Each package's documentation is its manual. docs/design.md in the repository says how
// the packages fit together.
package goddp
