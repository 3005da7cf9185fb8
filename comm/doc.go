// Package comm is how the processes of a job talk to each other: process
// groups and collectives, each asynchronous, over a backend that the group
// chooses for its device: internal/backend/host for the CPU, internal/backend/nccl between GPUs.
//
// # A group
//
// [Init] joins the job's group, as told by the environment that golaunch,
// torchrun and most schedulers set: RANK, WORLD_SIZE, LOCAL_RANK,
// LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT. With none of them set, the
// group has one member, and the same program runs alone. [Main] wraps a
// program's own main: signals, the error file that the launcher reads, the
// exit code. [Local] makes n groups within one process, one per goroutine,
// for tests.
//
// # Which job
//
// The processes that Init joins compare what job they are of, with the store that
// rank 0 or golaunch hosts and with each other: the job's id, which is
// GODDP_JOB_ID, else TORCHELASTIC_RUN_ID unless it is "none", else the batch
// system's; where there is none, the program and its arguments; and WORLD_SIZE.
// What differs is an error with both values. Two processes that bear one rank, at
// a store of ours, both fail while the group is being made; later, the second
// does. The error names both. Ranks whose arguments differ, and ranks in several
// steps of a batch job, need the same GODDP_JOB_ID.
//
// One case cannot be decided: two jobs of the same program, arguments and size,
// at one MASTER_ADDR and MASTER_PORT, without an id. If the ranks that come first
// complement each other, they are one group. golaunch gives each job an id.
//
// If the file that GODDP_TOKEN_FILE names has a secret, as under golaunch, every
// connection is opened by proving it. A store that other hosts can reach is not
// hosted without; GODDP_INSECURE=1 is for networks where everybody is trusted.
// SECURITY.md says who is kept out.
//
// # Collectives
//
// Every rank of a group calls the same collectives in the same order: that
// order is the contract between ranks, and what breaks it is reported as a
// [*MismatchError]. A call returns a [Work] at once. Several may be in flight;
// they run in order. [Work.Wait] makes what is computed next see the result.
// Tensors are flat: their element type and number count, not their shape.
//
//	work := pg.AllReduce(grad, comm.Sum)
//	...
//	if err := work.Wait(ctx); err != nil { ... }
//
// Send and Recv are ordered only among the calls between the same two ranks
// in the same direction. [ProcessGroup.Coalesce] starts several calls as one.
//
// Operands of a call may share memory in the forms that NCCL defines, and in no other:
// Reduce with src as dst, AllGather and Gather with src as this rank's part of dst,
// ReduceScatter and Scatter with dst as this rank's part of src. What one call of a
// Coalesce writes, no other call of it may read or write; the tensor of a Broadcast is
// written on every rank.
//
// Memory from [ProcessGroup.Alloc] is what the backend moves fastest: on the
// host, memory that the other ranks can see.
//
// # Several groups
//
// A rank may be in several groups ([ProcessGroup.Split]): rows and columns of a
// grid, or one for each model. Each numbers its own calls, and on the host they
// run side by side. On a GPU they share the device, where a call that waits for
// its peers can keep those of another group from running: the calls of all groups
// on a GPU have to be started in one order on all ranks. So have those of any
// program that waits for one call before it starts the next. One goroutine that
// goes through the same program on every rank keeps such an order; several
// goroutines with a group each do not.
//
// Unless the error mode is NoErrorHandling, a call that fails in one group breaks all
// groups of that Init, on all ranks. [ProcessGroup.Abort] breaks one group, and those split from
// it. Errors number all ranks as the job does, and name the group of a call that failed
// ([CallError]).
//
// # Failure
//
// Every call has a deadline: [Options].Timeout, or its own by
// [ProcessGroup.With]. A watchdog, one goroutine for all groups of an Init,
// knows the calls in flight. When a deadline passes it asks all ranks what they
// are doing, so that the error names who did not come and why, and breaks the
// group; a peer that dies is an error on every other rank at once. The coordinator of the job,
// in golaunch or rank 0, decides which failure was the first: it is the cause on all ranks. Match it with
// [ErrPeerLost], [ErrTimeout], [ErrAborted]. A call that failed leaves the group
// broken: all its calls return the first cause from then on, and a new group has
// to be made. What else happens is the [ErrorMode]'s: by default the process
// ends if it does not close the group by itself in a moment, after the functions
// given to [ProcessGroup.OnShutdown]; with [BlockingWait] it may Init again.
//
// Timeouts count only the time in which the process runs, so that a job survives being
// suspended as a whole (SIGSTOP, a paused virtual machine). When a rank continues, it
// extends the deadlines of its pending calls by the length of the suspension, minus 0.1 s.
// Because of the 0.1 s, a rank that hangs still times out after a bounded number of
// suspensions. If one rank alone is suspended, its peers time out as usual.
//
// Each rank's latest calls are in its flight record (package internal/flight), which
// a failure writes to a file, and golaunch even where the process cannot.
// [Options].CheckCalls, or GODDP_DEBUG=DETAIL, compares all ranks' calls before
// they run; [ProcessGroup.MonitoredBarrier] names who is missing;
// GODDP_DEBUG=INFO says which rank holds the others up. docs/failures.md is the
// manual of all that.
//
// A programming error that one rank can see alone (sizes, types or ranks that do not
// fit, operands that overlap) panics with a [*UsageError]. The call gets no number and
// nothing of it is sent. The group breaks, as by a call that fails: the calls of the
// other ranks return the same [*UsageError] as their cause, at once.
//
// # Stop requests
//
// A first SIGINT or SIGTERM ends the context that [Main] gave the program, unless the
// program asks for requests by [ProcessGroup.StopRequested]. Package ddp does so where the
// loop calls Model.Stopping, and has the ranks agree. In a program without package ddp each
// rank puts what StopRequested returns into something that the ranks reduce in each step,
// by [Max] or in a place of its own, and reads the result on the host:
//
//	status[0] = float32(pg.StopRequested())
//	... // AllReduce by Max
//	if sig := syscall.Signal(status[0]); sig != 0 { // on all ranks in the same step
//		pg.AcceptStop(sig)
//		return save()
//	}
//
// Where the ranks do not agree in half of the launcher's shutdown timeout, the deadlines of
// the calls in flight pass, so that the watchdog says which rank they wait for, and the
// context ends.
//
// # Who owns what
//
// A group owns its backend, and its device and store if it made them; Close
// ends them all. To its peers a process that ends without Close is one that died,
// be it that they are in the last call still: [Main] closes what the program left
// open. The context given to Init bounds the group's life: when it ends, the group
// is aborted and every wait returns its cause.
package comm
