// Package flight is the flight recorder: it keeps the latest calls of a process in memory that
// outlives the process. So after a failure every rank has a record, even one that was killed,
// suspended or stuck.
//
// # Recording
//
// A process has one [Recorder], which has a [Group] for each process group. [Group.Begin]
// records a call as queued. The [Entry] that it returns records when the call ran and how it
// ended. The three steps together take about 100 ns and allocate nothing.
//
//	rec := flight.Open(id, settings, log)
//	group := rec.Group("default", rank, size)
//	...
//	entry := group.Begin(call, now.UnixNano())
//	entry.Running(now)
//	entry.Ended(now, err != nil)
//
// A ring buffer holds the latest calls. Outside the ring, and so never overwritten, are the
// numbers of each group's latest collectives, why a group failed ([Recorder.Reason]), and the
// call sites. The process writes a call site as text when it sees it first. So a reader of the
// memory needs neither the process nor its executable.
//
// # Memory
//
// golaunch allocates the memory ([NewShared]), and each worker inherits a descriptor of it
// ([Inherited]). Under other launchers the memory belongs to the process. The layout is fixed and
// versioned. [Read] can read the memory while the recorder writes it, after the process has died,
// and even if its contents are corrupt. It never returns a half-written entry as complete. [Find]
// reads the records of a running job from another process.
//
// # Dumps
//
// A [Dump] is a record in plain types. [Dump.Write] writes it to a folder as rank_N.json, and
// [ReadDir] reads such folders. Package [github.com/goddp/goddp/internal/flight/analyze] derives
// from the dumps of all ranks which rank is at fault.
//
// # Settings
//
//	GODDP_FLIGHT_ENTRIES   size of the ring, 2000 by default; 0 records nothing
//	GODDP_FLIGHT_DIR       folder for dumps; a shared folder like /tmp gets a subfolder
//	GODDP_DUMP_ON_FAILURE  0: a failure writes no dump
//
// If these are not set, PyTorch's variables for the same settings apply: TORCH_FR_BUFFER_SIZE and
// TORCH_NCCL_TRACE_BUFFER_SIZE, TORCH_FR_DUMP_TEMP_FILE and TORCH_NCCL_DEBUG_INFO_TEMP_FILE,
// TORCH_NCCL_DUMP_ON_TIMEOUT.
package flight
