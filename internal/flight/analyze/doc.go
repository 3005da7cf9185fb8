// Package analyze finds out from the flight records of a job's ranks which rank is at fault.
//
//	dumps, err := flight.ReadDir(dir)
//	report := analyze.Analyze(dumps)
//	fmt.Print(report)
//
// # How it decides
//
// Analyze uses the records of the latest run. A job is in trouble if a call failed, a group recorded a failure, a
// process ended, is suspended or runs another program, a call is overdue, or a call has been in flight for longer
// than [Patience].
//
// Then it looks for these faults, in this order:
//
//   - Ranks that made different calls with the same sequence number. The call that most ranks made counts as the
//     right one. If the later calls suggest that a rank left out a call, or made one too many, the report says
//     so.
//   - Ranks that other ranks wait for and that themselves wait for no rank. Rank A waits for rank B if B has not
//     started A's current call, B started the call only after the call had failed on A, B's compute stream has
//     not reached the call, or B's process has ended. In Send and Recv a rank waits for its peer. The chain of
//     waits ends at a rank that has no record, whose process ended or is suspended, that left without a failure,
//     or that is busy outside communication.
//   - Ranks that wait for each other in a circle, because they use groups, or Send and Recv, in
//     different orders.
//   - If no rank is found so far: a process that ended by itself, the first recorded reason, or
//     the transport. Package [github.com/goddp/goddp/internal/rootcause] decides which came first.
//
// When a deadline passes, a rank records the ranks that it waits for. Findings about the ranks
// recorded at the first deadline come first. The other findings can be misleading: a rank that
// was suspended during a call, and continued after the other ranks had timed out, has started
// all calls of the other ranks, and more.
//
// If a process recorded a failure before it ended, its end is the effect of another rank's
// failure.
//
// [Overdue] names the ranks that an overdue call waits for, from the findings and from what the
// backends know.
package analyze
