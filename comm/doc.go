// Package comm provides process groups and collectives, as torch.distributed does: the processes of a
// job exchange tensors by asynchronous calls such as AllReduce and Broadcast. A group uses NCCL if
// its device is a GPU. If its device is the CPU, it uses goddp's host backend, which works over
// shared memory and TCP.
//
// # A group
//
// [Init] joins the job's group. It reads the environment variables that golaunch and torchrun
// set: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT. If neither
// RANK nor WORLD_SIZE is set, the group has one member, so the same program also runs alone.
// [Main] wraps a program's main function: it handles signals, writes the error
// file that the launcher reads, and sets the exit code. [Local] makes n groups within one
// process, one per goroutine, for tests.
//
// # Which job a process belongs to
//
// When Init connects, each process checks that the store (hosted by rank 0 or golaunch) and the other
// ranks belong to the same job. It compares WORLD_SIZE and the job's id: GODDP_JOB_ID; else
// TORCHELASTIC_RUN_ID, unless it is "none"; else the batch system's id; else the program and its
// arguments. If they differ, the error holds both values. If two processes have the same rank, the
// error names both. If the group is still being made, both fail; otherwise the second one fails.
// Ranks whose arguments differ, and ranks in several steps of a batch job, need the same
// GODDP_JOB_ID.
//
// One case cannot be detected: two jobs without an id, of the same program, arguments and
// size, at the same MASTER_ADDR and MASTER_PORT. If the processes that join first happen to
// have different ranks, they become one group. golaunch gives each job an id.
//
// If GODDP_TOKEN_FILE names a file with a secret, as under golaunch, both ends of every connection
// prove that they know the secret. Without a secret, rank 0 does not host a store that other hosts
// can reach. GODDP_INSECURE=1 permits it, for trusted networks. With a secret, data between ranks on
// different hosts is encrypted and authenticated, except NCCL's; GODDP_UNPROTECTED_DATA=1, on all
// ranks, turns this off. SECURITY.md has the threat model.
//
// # Collectives
//
// Every rank of a group starts the same collectives in the same order. If the calls of two
// ranks differ, they fail with a [*failure.MismatchError]. A call returns a [Work] at once. Several
// calls may be in flight; they run in order. After [Work.Wait], computations that are
// enqueued on the device see the result. Tensors are flat: a call compares their element
// type and their number of elements, not their shape.
//
//	work := pg.AllReduce(grad, comm.Sum)
//	...
//	if err := work.Wait(ctx); err != nil { ... }
//
// Send and Recv are ordered only relative to other calls between the same two ranks in the
// same direction. [ProcessGroup.Coalesce] starts several calls as one.
//
// The operands of a call may share memory only in the ways that NCCL defines: Reduce with
// src equal to dst; AllGather and Gather with src as this rank's part of dst; ReduceScatter
// and Scatter with dst as this rank's part of src. If a call of a Coalesce writes a tensor,
// no other call of that Coalesce may read or write the same memory. A Broadcast writes its
// tensor on every rank.
//
// Memory from [ProcessGroup.Alloc] is transferred fastest. On the CPU it is memory that the
// other ranks of the host map as well.
//
// # Several groups
//
// A rank may be in several groups ([ProcessGroup.Split]): the rows and columns of a grid, or one
// group for each model. Each group numbers its own calls. On the CPU the calls of different groups
// run concurrently. On a GPU the groups share the device, and a call that waits for its peers can
// keep the calls of another group from running. Therefore all ranks must start the calls of all
// groups on a GPU in the same order. On any device, ranks that wait for one call before they start
// the next must also start the calls of all groups in the same order. If one goroutine of each rank
// runs the same program, the order is the same on all ranks. If each group has its own goroutine, the
// order may differ.
//
// Unless the error mode is NoErrorHandling, a call that fails in one group breaks all groups
// of that Init, on all ranks. [ProcessGroup.Abort] breaks one group and the groups split
// from it. Errors identify ranks by their number in the job, and name the group of the call
// that failed ([failure.CallError]).
//
// # Failure
//
// Every call has a deadline, from [Options].Timeout or from [ProcessGroup.With]. The groups
// of an Init share one watchdog, a goroutine that tracks the calls in flight. When a
// deadline passes, the watchdog asks all ranks what they are doing, so that the error names
// the ranks that did not join the call, and why. Then the group breaks. When a peer dies,
// the calls of every other rank fail at once. The job's coordinator, in golaunch or in rank
// 0, decides which failure was the first. That failure is the cause on all ranks. It matches
// [ErrPeerLost], [ErrTimeout] or [ErrAborted].
//
// After a call has failed, the group is broken: all its calls return the first cause, and
// the program has to make a new group. The [ErrorMode] says what else happens. By default
// the watchdog ends the process, unless the program closes the group within half a second.
// Before it ends the process, the watchdog calls the functions given to
// [ProcessGroup.OnShutdown]. With [BlockingWait] the process goes on and may call Init again.
//
// Timeouts count only the time in which the process runs, so that a job survives being suspended as a
// whole (SIGSTOP, a paused virtual machine). When a rank continues, it extends the deadlines of its
// pending calls by the length of the suspension, minus 0.1 s. Because of the 0.1 s, a rank that hangs
// still times out after a bounded number of suspensions. If only one rank is suspended, its peers
// time out as usual.
//
// The latest calls of each rank are in its flight record. When a call fails, the rank writes
// the record to a file. golaunch writes the records of processes that can no longer write
// their own. Further tools: [Options].CheckCalls, or GODDP_DEBUG=DETAIL, compares the calls
// of all ranks before they run; [ProcessGroup.MonitoredBarrier] names the ranks that are
// missing; GODDP_DEBUG=INFO logs which rank the others wait for. docs/failures.md is the
// manual of these tools.
//
// A call with invalid arguments (wrong sizes, types or ranks, operands that overlap) panics with a
// [*failure.UsageError]. The call gets no sequence number and sends nothing. The group breaks as it
// does when a call fails: the calls of the other ranks fail at once, with the same
// [*failure.UsageError] as their cause.
//
// # Stop requests
//
// A first SIGINT or SIGTERM ends the context that [Main] gave the program, unless the program asks
// for stop requests by [ProcessGroup.StopRequested]. Package ddp asks if the training loop calls
// Model.Stopping, and has the ranks agree on a step. In a program without package ddp, each rank puts
// the result of StopRequested into a tensor that the ranks reduce in each step. The ranks may share
// one element, reduced by [Max], or use one element each. Then each rank reads the reduced tensor on
// the host:
//
//	status[0] = float32(pg.StopRequested())
//	... // AllReduce by Max
//	if sig := syscall.Signal(status[0]); sig != 0 { // on all ranks in the same step
//		pg.AcceptStop(sig)
//		return save()
//	}
//
// If the ranks do not agree within half of the launcher's shutdown timeout, the deadlines of
// the calls in flight pass at once, so that the watchdog reports which rank the calls wait
// for. Then the context ends.
//
// # Ownership
//
// A group owns its backend. It owns its device and its store if Init made them. Close
// releases what the group owns. If a process ends without Close, its peers treat it as dead,
// even if only their last call is still running. [Main] closes the groups that the program
// left open.
//
// The context given to Init limits only Init itself. Afterwards [ProcessGroup.Abort] ends a group. To
// end the group when a context ends, write
//
//	context.AfterFunc(ctx, func() { pg.Abort(context.Cause(ctx)) })
//
// Under [Main] a signal ends the groups anyway.
package comm
