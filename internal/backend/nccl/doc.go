// Package nccl is the [backend.Backend] for tensors in the memory of NVIDIA
// GPUs, one GPU for each rank, over NVIDIA's NCCL.
//
// The library is opened at run time. It is looked for as GODDP_LIBNCCL names
// it, by the loader's path, in the CUDA home, and among NVIDIA's packages of a
// Python environment; a program built without cgo, or not for Linux, has none.
// NCCL's own variables pass through untouched, but for two that are set where
// the user did not: NCCL_RUNTIME_CONNECT=0, so that collectives connect when
// the group is made and no later one waits for a peer inside NCCL, and, for a
// group on one host, NCCL_SOCKET_IFNAME=lo, since NCCL's listeners
// authenticate nobody.
//
// # How a group is made
//
// The ranks tell each other, by way of the coordinator (Config.Control), which library
// and which GPU they have, and refuse what NCCL would hang on: two ranks on a
// GPU, different releases. Then they make a blocking communicator, on a thread
// that is given up on when the time is over; what few bytes take comes before and
// after it. Each rank tells the coordinator which of these steps it has behind it:
// when the time is over, a [LateError] names who is late, and at what.
//
// A group from Split has a communicator of its own. ncclCommSplit would need
// every rank of the parent to call it, also those that get no group, and a
// communicator that shares resources with another breaks with it.
//
// # How a call runs
//
// Start makes the group's own high-priority stream wait for the event
// Call.After, enqueues the call, and an event behind it; nothing waits on the
// host. Join makes a stream wait for that event. A call runs, and is no longer
// queued, once Call.After and the event of the call before it are reached.
//
// Gather, Scatter and AllToAll are groups of NCCL's Send and Recv; AllGather
// of uneven sizes is a group of broadcasts. Operations without elements end at
// once, without meeting the peers.
//
// # Few bytes
//
// NCCL takes the host six microseconds and more to start an all-reduce, which is
// longer than the GPUs take for a few kilobytes. So AllReduce with Sum or Avg of a
// floating-point type, of up to a mebibyte divided by the number of ranks, and
// Barrier, are not NCCL's where two to eight GPUs of one host, each with a process
// of its own, can map each other's memory. One kernel (oneshot.cu) writes a rank's
// elements into memory of all, and sums up what it finds in its own, as soon as it
// finds it, in the order of the ranks. It runs on the group's stream, in turn with
// NCCL's kernels, and ends when the group is aborted. What is part of a Group is
// NCCL's.
//
// Each rank has 4 MiB for that, in each group. The others hear of them from the
// coordinator before they make the communicator, and map them after that. If anything
// hinders one rank, NCCL has everything on all of them, and a line at debug level
// says why: be it Options.NoSmallAllReduce, or a variable of NCCL's that turns P2P off.
// A rank unmaps the others' memory before it leaves the group, and gives its own back
// when all leave together. If the group broke, did not come about, or they leave one by
// one, it stays as long as the device, since a peer may still write to it.
//
// # Send and Recv
//
// Send and Recv outside a Group have, for each peer and direction, a
// communicator of two ranks and a stream of their own: on one communicator
// NCCL runs one call after the other, and two ranks that first send and then
// receive would wait for each other for ever. Calls of a Group run on the
// group's communicator as one, so a Send within a Group meets a Recv within a
// Group; that is also the way to exchange with many peers, since many
// communicators at once can use up the GPU that they need to run side by side.
// Groups that share a GPU must start their calls in the same order on all
// ranks for the same reason.
//
// The first Send or Recv between two ranks makes connections inside NCCL,
// which waits there for the peer. It is therefore enqueued in the background,
// and what comes after it on its stream with it: until then the call is
// queued, and Join blocks.
//
// # Arithmetic
//
// NCCL's arithmetic differs from internal/backend/host's in places: Min and Max may drop a
// NaN, and Avg of a floating-point type multiplies by 1/N rounded to the type
// before it sums, as PreMulSum does with the rank's factor. That of few bytes sums
// and multiplies in float32, or float64, and rounds once; so the same numbers may
// have another last bit in a larger tensor. Ranks that call different collectives
// are not noticed by NCCL: they hang until they are aborted, or receive wrong data.
//
// # Failure
//
// While calls are pending one goroutine looks every few milliseconds at their
// events and NCCL's asynchronous errors. What it finds, or an Abort, is reported
// to the coordinator, and calls that are done by then count as done. The coordinator
// also sees that a rank's process ends. It decides why the group broke, and tells all
// ranks.
//
// A rank that has been told breaks its group. It waits until all ranks know, but at
// most 200 milliseconds: one that is suspended does not say so. Then pending calls, and
// Start, return the cause, and the communicators are aborted, on threads that are given
// up on after two seconds. So the other ranks have the cause even if the program ends
// for the first error. A thread that never comes out of NCCL, be it the caller's of
// Start, stays, and with it the group's streams and the memory of Alloc.
//
// What NCCL's kernels hand on while they are aborted is no data, and the peers' kernels
// take it for some: their calls end as if all were well. But every rank that runs knows
// of the failure before the first abort, and a rank that was suspended has the notice
// unread. So a call is not done, a one-shot neither, if the coordinator has told of a
// failure, read or not, when its event has been reached. A call that had all its data
// may fail by that. Work that a Join put behind a call runs all the same: what it
// computed is worthless once the group has failed.
//
// Where the coordinator is gone, or has not been heard of for some seconds, ranks can
// tell each other nothing. Then no call is done any more, and the groups break.
//
// # Leaving
//
// NCCL's communicators end together: ncclCommDestroy waits for the other ranks
// of the host, and a rank that ended its communicator before the others are done
// with theirs would take data along that are on their way, and memory that a
// peer's call may still use. So Close waits for pending calls and tells the
// coordinator that this rank leaves. If all ranks do within two seconds, they end their
// communicators together. Otherwise the coordinator tells the others which calls the
// leaving rank has done, and they let it go once they have done as many: it then
// aborts its communicators, by itself and bounded as any abort. The others hear of no
// failure. They go on as long as they do not need the rank that left: a call that it
// has not called is reported, and fails with a [backend.PeerLostError]. Their own
// communicators they abort in the end.
//
// When ctx ends before all have answered, as when a peer has stopped, or still
// works on what this rank has done, the group is broken.
package nccl
