// Package nccl is the [backend.Backend] for tensors in the memory of NVIDIA GPUs. It uses NVIDIA's
// library NCCL and one GPU for each rank.
//
// The library is opened at run time. It is searched for in GODDP_LIBNCCL, in the loader's path, in
// the CUDA home, and among NVIDIA's packages of a Python environment. A program built without cgo, or
// not for Linux, cannot use it. NCCL's own environment variables have their usual effect. Two of them
// are set if the user has not set them: NCCL_RUNTIME_CONNECT=0 makes collectives connect when the
// group is made, so that no later one waits for a peer inside NCCL. For a group on one host,
// NCCL_SOCKET_IFNAME=lo is set, because NCCL's listeners authenticate nobody.
//
// # How a group is made
//
// The ranks exchange, through the coordinator (Config.Control), which library and which GPU they
// have. They refuse combinations with which NCCL would hang: two ranks on one GPU, and different
// releases. Then each rank makes a blocking communicator, on a thread that is left behind if the time
// is over. The memory for small all-reduces is made before that and mapped after it. Each rank tells
// the coordinator when it has finished a step, so that after a timeout a [LateError] names the late
// ranks and the step.
//
// A group from Split gets a communicator of its own. ncclCommSplit is not used: every rank of the
// parent would have to call it, and communicators that share resources break together.
//
// # How a call runs
//
// Start makes the group's high-priority stream wait for the event Call.After, enqueues the call, and
// records an event after it. It does not wait on the host. Join makes a stream wait for that event.
// A call counts as running, and no longer as queued, when Call.After and the event of the previous
// call were reached.
//
// Gather, Scatter and AllToAll are groups of ncclSend and ncclRecv. AllGather of uneven sizes is a
// group of broadcasts. Operations without elements end at once, without synchronising the ranks.
//
// # Small all-reduces
//
// NCCL needs at least six microseconds on the host to start an all-reduce, longer than the GPUs need
// for a few kilobytes. So small all-reduces and Barrier use kernels of this package,
// small_allreduce.cu. An all-reduce is small if it is a Sum or Avg of a floating-point type, of at
// most 1.4 MiB, and not part of a Group. The kernels are used in groups of two to eight GPUs of one
// host that can map each other's memory, with one process for each GPU. They run on the group's
// stream like NCCL's kernels, and end when the group is aborted.
//
// Elements are sent in lines. A line also has the number of the call, which tells its reader that the
// elements have arrived. Below 64 KiB a line has 16 bytes, 8 of them elements. Each rank writes its lines
// into the memory of every rank, and sums what arrives in its own memory, in the order of the ranks.
//
// From 64 KiB on a line has 128 bytes, 120 of them elements, so fewer bytes are sent. Two ranks proceed as
// below 64 KiB. Three or more take two steps: each rank sums one part of the elements, and then writes its
// sums into the memory of every rank.
//
// The longer lines need NVLink between all GPUs, of one generation, and processes that each see the
// GPUs of all: CUDA_VISIBLE_DEVICES must not hide them. NCCL_PROTO turns them off as it does NCCL's
// LL128. Without them an all-reduce is small up to 64 KiB, and a message at debug level says why.
//
// Each rank has 6.5 to 8 MiB of memory for this in each group. The ranks exchange its handles before they make
// the communicator and map it afterwards. If a rank cannot take part, NCCL runs small all-reduces on
// all ranks, and a message at debug level says why. Options.NoSmallAllReduce, and variables that turn
// off NCCL's P2P, have the same effect. A rank unmaps the other ranks' memory before it leaves the
// group. It frees its own memory if all ranks leave together. If the group broke, was not completed,
// or the ranks leave one by one, the memory is not freed, because a peer may still write to it: a
// process loses 6.5 to 8 MiB with each such group.
//
// # Send and Recv
//
// Send and Recv outside a Group use a communicator of two ranks and a stream of their own, for each
// peer and direction. On one communicator NCCL runs one call after the other, so two ranks that send
// first and receive then would deadlock. The calls of a Group run as one on the group's communicator,
// so a Send in a Group must meet a Recv in a Group. To exchange data with many peers, use a Group: many
// communicators at once can exhaust the GPU's capacity to run kernels side by side. For the same
// reason, groups that share a GPU must start their calls in the same order on all ranks.
//
// The first Send or Recv between two ranks makes NCCL connect them, and wait for the peer. So that call
// is enqueued in the background, and so are the later calls on its stream. Until a call is
// enqueued, it counts as queued and Join blocks.
//
// # Arithmetic
//
// NCCL's arithmetic differs from that of comm/internal/host in some places. Min and Max may lose a
// NaN. Avg of a floating-point type multiplies by 1/N, rounded to the type, before it sums, as
// PreMulSum does with each rank's factor. Small all-reduces sum and multiply in float32, or float64,
// and round once, so the same elements may have another last bit in a larger tensor. NCCL does not
// notice if ranks call different collectives: the calls hang until they are aborted, or return wrong
// data.
//
// # Failure
//
// While calls are pending, a goroutine polls their events and NCCL's asynchronous errors every few
// milliseconds. A failure that it finds, or an Abort, is reported to the coordinator; calls that were
// done before count as done. The coordinator also notices that a rank's process ended. It decides why
// the group broke, and notifies all ranks.
//
// A notified rank breaks its group. It first waits until all ranks know the cause, but at most 200
// milliseconds, since a suspended rank cannot answer. Then pending calls and Start return the cause,
// and the communicators are aborted, on threads that are left behind after two seconds. So the other
// ranks get the cause even if the program exits on the first error. The group counts as ended when its
// kernels have ended: ncclCommAbort returns up to half a second later, because it waits for threads of NCCL
// that look for an abort twice a second. If a thread never returns from
// NCCL, the group's streams and the memory of Alloc are not freed; that thread may be the one that
// called Start.
//
// While NCCL's kernels are aborted, they send invalid data, which the peers' kernels accept: the peers'
// calls end as if they had succeeded. But before the first abort every running rank knows of the
// failure, and a suspended rank finds the coordinator's notice when it resumes. So a call, also a small
// all-reduce, is done only if its event was reached and no notice of a failure has arrived, read or
// unread. A call that had all its data may fail by this rule. Work that Join ordered after a call runs in
// any case; its results are invalid once the group has failed.
//
// If the coordinator is gone, or has not answered for some seconds, the ranks cannot notify each other.
// Then no call counts as done any more, and the groups break.
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
// If Close's context ends before the others have released the rank, for example because a peer is
// stopped or has not done as many calls, the group breaks.
package nccl
