// Package commhook reduces gradients in fewer bytes than an all-reduce takes, or
// over fewer ranks: communication hooks, for ddp.Options.Hook. They are
// [reducer.Hook]s, of one model each.
//
//	model, err := ddp.New(net, pg, &ddp.Options{Hook: commhook.BF16(nil)})
//
// # Which
//
// With N ranks, each sends for each Float32 parameter, where an all-reduce sends 4
// bytes twice, but for one part in N:
//
//	                    bytes           of the gradients it keeps
//	AllReduce           2·4·(N-1)/N     all
//	BF16                2·2·(N-1)/N     8 bits of each
//	FP16                2·2·(N-1)/N     11 bits of those above 6e-5
//	Int8                2·1.02·(N-1)/N  8 bits of the largest of 252
//	PowerSGD, rank r    2·4·(N-1)/N · r·(n+m)/(n·m), for a matrix [n m]
//	PostLocalSGD        0, or what the hook below sends, within a subgroup
//	Noop                0
//
// What does not wait for the network gains nothing: where the backward pass hides
// the reductions, an all-reduce is as fast. BF16 is the first to try: it changes
// no training that tolerates BFloat16 elsewhere. FP16 keeps more of gradients of
// moderate size, with a loss scale (package amp) that puts them there. Int8 halves
// that again; a half of its second communication is behind the pass. PowerSGD sends
// little over slow networks and takes three thin matrix products; it has to be
// tried on the model. PostLocalSGD trades the ranks' agreement for steps that do
// not wait for other hosts.
//
// # Composition
//
// Hooks that compress take the one that reduces what they made of a bucket:
// BF16(powerSGD) gives PowerSGD gradients of 16 bits, PowerSGDOptions.Hook: BF16(nil)
// sends its factors in such. PostLocalSGD goes around the others, as it counts
// passes. [Func] makes a hook of a function.
//
// # Memory and order
//
// Memory for a bucket is made when it is first reduced, and anew when the buckets
// are rebuilt; later passes allocate none. What is kept from pass to pass goes by
// parameter and outlives the rebuilding. Where there is no memory, the group is
// aborted: the other ranks would wait for this one.
//
// Nothing waits for the device where the backward pass runs. A hook enqueues its
// work on the compute stream, behind what made the gradients. Two communications, of
// which the second needs the first's result, are started during the pass and behind
// it.
//
// Every rank ends with the same bits, but for Noop and PostLocalSGD. A hook is
// compared with the other ranks' when the model is made, with its options.
package commhook
