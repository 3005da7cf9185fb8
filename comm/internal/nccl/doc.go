// Package nccl implements [backend.Backend] for tensors on NVIDIA GPUs, with NCCL and one GPU per rank.
//
// The library is loaded at run time, from GODDP_LIBNCCL, the loader's path, the CUDA home, or NVIDIA's
// packages of a Python environment. The package needs cgo and Linux. NCCL's environment variables have their
// usual effect. Two of them get defaults: NCCL_RUNTIME_CONNECT=0 makes collectives connect when the group is
// created, so that no later call waits for a peer inside NCCL. For a group on one host, NCCL_SOCKET_IFNAME is
// lo, because NCCL's listeners do not authenticate.
//
// # How a group is created
//
// The ranks exchange their library versions and GPUs through the coordinator (Config.Control), and reject
// combinations with which NCCL would hang: two ranks on one GPU, and different releases. Then each rank
// creates a blocking communicator, on a thread that is abandoned after a timeout. The memory for small
// all-reduces is allocated before that and mapped after it. Each rank notifies the coordinator when it has
// finished a step, so that after a timeout a [LateError] names the late ranks and the step.
//
// A group from Split gets a new communicator. ncclCommSplit is not used: every rank of the parent would have
// to call it, and communicators that share resources fail together.
//
// # How a call runs
//
// Start makes the group's high-priority stream wait for the event Call.After, enqueues the call, and records
// an event after it. It does not block the host. Join makes a stream wait for that event. A call changes from
// queued to running when Call.After and the event of the previous call are complete.
//
// Gather, Scatter and AllToAll are groups of ncclSend and ncclRecv. AllGather of uneven sizes is a group of
// broadcasts. Operations without elements end at once, without synchronizing the ranks.
//
// # Small all-reduces
//
// NCCL takes at least six microseconds on the host to start an all-reduce, longer than the GPUs take for a few
// kilobytes. So small all-reduces and Barrier use this package's kernels (small_allreduce.cu). An all-reduce
// is small if it is a Sum or Avg of a floating-point type, of at most 1.4 MiB, and not part of a Group. The
// kernels are used in groups of two to eight GPUs of one host that can map each other's memory, with one
// process for each GPU. They run on the group's stream like NCCL's kernels, and end when the group is aborted.
//
// The protocols are like NCCL's LL and LL128. Data is sent in lines that also contain the call's number, which
// tells the reader that the line has arrived. Below 64 KiB a line has 16 bytes, 8 of them data. Each rank
// writes its lines into the memory of every rank, and sums the lines that arrive in its own memory, in rank
// order.
//
// From 64 KiB on a line has 128 bytes, 120 of them data, so fewer bytes are sent. Two ranks proceed as below
// 64 KiB. Three or more take two steps: each rank sums one part of the elements, and then writes the sums into
// the memory of every rank.
//
// The 128-byte lines need NVLink of one generation between all GPUs, and CUDA_VISIBLE_DEVICES must not hide a
// peer's GPU. NCCL_PROTO disables them like NCCL's LL128. Without them an all-reduce is small up to 64 KiB,
// and a message at debug level says why.
//
// This takes 6.5 to 8 MiB of memory per rank and group. The ranks exchange its handles before they create the
// communicator, and map it afterwards. If a rank cannot, all ranks use NCCL for small all-reduces, and a
// message at debug level says why. Options.NoSmallAllReduce, and variables that disable NCCL's P2P, have the
// same effect. A rank unmaps the other ranks' memory before it leaves the group. It frees its own memory if
// all ranks leave together. If the group failed, was never complete, or the ranks leave one by one, the memory
// is leaked, because a peer may still write to it. Only comm's Reconfigure knows when no peer is left, and frees it.
//
// # Send and Recv
//
// Send and Recv outside a Group use a separate two-rank communicator and stream per peer and direction. A
// communicator runs its calls in order, so on a shared one, two ranks that both send first and then receive
// would deadlock. The calls of a Group run as one on the group's communicator, so a Send in a Group must match
// a Recv in a Group. To exchange data with many peers, use a Group: many communicators at once can exhaust the
// GPU's capacity for concurrent kernels. For the same reason, groups that share a GPU must start their calls
// in the same order on all ranks.
//
// In the first Send or Recv between two ranks, NCCL connects them and waits for the peer. So that call and
// later calls on its stream are enqueued in the background. Until a call is enqueued, it counts as queued and
// Join blocks.
//
// # Arithmetic
//
// NCCL's arithmetic differs from comm/internal/host's. Min and Max may lose a NaN. Avg of a floating-point
// type multiplies by 1/N, rounded to the type, before it sums, as PreMulSum does with each rank's factor.
// Small all-reduces sum and multiply in float32 or float64 and round once, so the last bit of an element may
// depend on the tensor's size. NCCL does not detect mismatched collectives: the calls hang until they are
// aborted, or return wrong data.
//
// # Failure
//
// While calls are pending, a goroutine polls their events and NCCL's asynchronous errors every few
// milliseconds. Failures and Abort are reported to the coordinator; calls that completed before count as done.
// The coordinator also detects that a rank's process ended. It decides which failure came first, and notifies
// all ranks.
//
// A notified rank first waits until all ranks know the cause, for at most 200 milliseconds, because a
// suspended rank cannot answer. So the other ranks get the cause even if the program exits on the first error.
// Then pending calls and Start return the cause, and the communicators are aborted, on threads that are
// abandoned after two seconds. The group counts as ended when its kernels have ended: ncclCommAbort returns up
// to half a second later, because it joins NCCL threads that check for an abort twice a second. If a thread
// never returns from NCCL (it may be the one that called Start), the group's streams and the memory of Alloc
// are leaked.
//
// NCCL kernels that are being aborted send invalid data, which the peers' kernels accept: the peers' calls
// complete as if they had succeeded. But before the first abort every running rank knows of the failure, and a
// suspended rank finds the coordinator's notice when it resumes. So a call, also a small all-reduce, is done
// only if its event is complete and no notice of a failure has arrived, read or unread. By this rule, a call
// may fail although its data is complete. Work that Join ordered after a call runs in any case; its results
// are invalid once the group has failed.
//
// If the coordinator is lost, or has not answered for some seconds, the ranks cannot notify each other. Then
// no call counts as done any more, and the groups are aborted.
//
// # Leaving
//
// NCCL's communicators must end together. ncclCommDestroy waits for the other ranks of the host. If a
// rank ended its communicator before the others are done, data on the way would be lost, and memory
// that a peer's call uses would be freed. So Close waits for pending calls and tells the coordinator
// that this rank leaves. If all ranks do so within two seconds, they destroy their communicators
// together. Otherwise the coordinator tells the other ranks which calls the leaving rank has done. They
// release the leaving rank once they have done as many, and it aborts its communicators, in bounded
// time. The others do not fail. They go on as long as they do not need the rank that left: a call that
// needs it is reported and fails with a [failure.PeerLostError]. At the end they abort their
// communicators.
//
// If Close's context ends before the others have released the rank, for example because a peer is stopped or
// has done fewer calls, the group is aborted.
package nccl
