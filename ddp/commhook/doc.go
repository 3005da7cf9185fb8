// Package commhook provides communication hooks for ddp.Options.Hook. They reduce gradients with
// fewer bytes than an all-reduce, or over fewer ranks. Each hook is a [reducer.Hook] and belongs to
// one model.
//
//	model, err := ddp.New(net, pg, &ddp.Options{Hook: commhook.BF16(nil)})
//
// # Which hook
//
// With N ranks, each rank sends these bytes for each Float32 parameter:
//
//	                    bytes           what is kept of a gradient
//	AllReduce           2·4·(N-1)/N     all bits
//	BF16                2·2·(N-1)/N     8 bits of precision
//	FP16                2·2·(N-1)/N     11 bits of precision, if it is above 6e-5
//	Int8                2·1.02·(N-1)/N  8 bits relative to the largest of 252 gradients
//	PowerSGD, rank r    2·4·(N-1)/N · r·(n+m)/(n·m), for a matrix [n m]
//	PostLocalSGD        0, or the bytes of its Hook within a subgroup
//	Noop                0
//
// A hook makes training faster only if training waits for the network. If the reductions are hidden
// behind the backward pass, a plain all-reduce is as fast. Try BF16 first if the model also trains with
// BFloat16 activations. FP16 is more precise than BF16 for gradients above 6e-5; a loss scale (package
// amp) brings gradients into that range. Int8 sends half the bytes of BF16, but half of its communication
// runs after the backward pass. PowerSGD sends the fewest bytes, but it is an approximation and
// multiplies three thin matrices per gradient: test how the model trains with it. With PostLocalSGD the ranks
// do not communicate with other hosts in each step, but their replicas differ between two averages.
//
// # Composition
//
// A hook that compresses takes another hook, which reduces the compressed gradients. BF16(powerSGD)
// rounds the gradients to 16 bits before PowerSGD compresses them. With PowerSGDOptions.Hook = BF16(nil),
// PowerSGD sends its factors in 16 bits. PostLocalSGD must be the outermost hook, because it counts passes.
// [Func] turns a function into a hook.
//
// # Memory and order
//
// A hook allocates memory for a bucket when it first reduces the bucket, and again after the
// buckets were rebuilt. Later passes allocate nothing. State that lives from pass to pass is stored
// by parameter and survives the rebuilding. If an allocation fails, the hook aborts the group,
// because the other ranks would wait for this rank.
//
// During the backward pass a hook never waits for the device. It enqueues its work on the compute
// stream, after the work that computes the gradients. If a reduction takes two communications and
// the second depends on the first's result, the second is started after the pass.
//
// All ranks get bit-identical gradients, except with Noop and PostLocalSGD. ddp.New checks that all
// ranks use the same hook with the same options.
package commhook
