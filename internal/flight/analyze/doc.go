// Package analyze says in words what the flight records of a job's ranks mean:
// which rank is the culprit, and how that shows.
//
//	dumps, err := flight.ReadDir(dir)
//	report := analyze.Analyze(dumps)
//	fmt.Print(report)
//
// # How it judges
//
// Records of one run are looked at, the latest. A job is in trouble if a call
// failed, a group gave a reason, a process ended or is suspended, or a call is
// overdue, or has been in flight for longer than [Patience]; a call in flight
// alone is no fault.
// Then, most telling first:
//
//   - Ranks that called different things under one number. What most of a
//     group's ranks called is taken for right. It says also when the calls that
//     follow look as if one had been left out, or made twice.
//   - Ranks that others wait for, and that wait for nobody. A rank waits for
//     those that have not called what it is in the middle of, for those that
//     called it only after it had failed, whose compute has not come to it, or
//     whose process is gone, and by Send and Recv for its peer. The chain of
//     waiting ends at a rank without a record, one whose process ended or is
//     suspended, one that left in good order, or one that is busy outside
//     communication.
//   - Ranks that wait for each other in a circle: they use groups, or Send and
//     Recv, in different orders.
//   - If nobody is to blame so far: a process that ended by itself, the first
//     reason recorded, or the transport.
//
// What concerns the ranks that were waited for when the first deadline passed,
// as the record of the rank whose call it was has it, comes before the rest: a
// rank that was suspended in the middle of a call, and went on when the others
// had given up, has called all that they did, and more.
//
// A process that ended after it had recorded a failure is an echo of another.
package analyze
