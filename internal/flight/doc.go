// Package flight is the flight recorder: the latest calls of a process, in
// memory that outlives it, so that after a failure every rank tells what it
// was doing, also one that was killed, stopped, or stuck.
//
// # Recording
//
// A process has one [Recorder]; each of its process groups has a [Group] of
// it. [Group.Begin] records a call as queued, and the [Entry] that it returns
// records when the call ran and how it ended. The three together take about
// 100 ns and allocate nothing.
//
//	rec := flight.Open(id, settings, log)
//	group := rec.Group("default", rank, size)
//	...
//	entry := group.Begin(call, now.UnixNano())
//	entry.Running(now)
//	entry.Ended(now, err != nil)
//
// The ring holds the latest calls; older ones make room. Beside it stand the
// numbers of each group's latest collectives, which the ring's end does not
// touch, why a group failed ([Recorder.Reason]), and the places in the program
// that calls come from. A place is put into words when it is first seen, in
// the process itself: whoever reads the memory later needs neither the process
// nor its executable.
//
// # Memory
//
// golaunch makes the memory ([NewShared]) and each worker inherits a
// descriptor of it ([Inherited]). Without a launcher that does, it is memory
// of the process. Its layout is fixed and versioned; [Read] reads it while the
// recorder writes, after it has died, and whatever it holds, without ever
// taking a half-written entry for a whole one. [Find] reads the records of
// a running job from outside.
//
// # Dumps
//
// A [Dump] is a record in plain types; [Dump.Write] writes it to a folder as
// rank_N.json, and [ReadDir] reads such folders. Package
// [github.com/goddp/goddp/internal/flight/analyze] says in words what the dumps of
// all ranks mean.
//
// # Settings
//
//	GODDP_FLIGHT_ENTRIES   calls kept, 2000 by default; 0 records nothing
//	GODDP_FLIGHT_DIR       folder for dumps; one like /tmp gets a new one for them
//	GODDP_DUMP_ON_FAILURE  0: a failure writes no dump
//
// PyTorch's variables for the same purposes are read where these are not set:
// TORCH_FR_BUFFER_SIZE and TORCH_NCCL_TRACE_BUFFER_SIZE,
// TORCH_FR_DUMP_TEMP_FILE and TORCH_NCCL_DEBUG_INFO_TEMP_FILE,
// TORCH_NCCL_DUMP_ON_TIMEOUT.
package flight
