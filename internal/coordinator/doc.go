// Package coordinator transfers everything but tensors between the ranks of a job: that they
// have joined, their addresses, the settings that must be equal on all ranks, why a group
// broke, and that they leave.
//
// Every rank has one connection to the coordinator for each Init. golaunch hosts the
// coordinator; under other launchers, rank 0 does. The coordinator decides which failure was
// the first, and sends that failure to all ranks. Groups from Split, the checks of debug modes
// and the parts of a backend are names and keys on this one connection. Messages number ranks
// as the job does.
//
// # What ranks send
//
//	Join    I join: my process, my settings, which must be equal on all ranks, and a value
//	Gather  my value of this key, for the members of this group
//	Fail    this failed, or is overdue; ask these ranks before you decide
//	Ack     I know of the failure, or: this is my answer
//	Leave   I close this group, or leave the session, without a failure
//	Query   which members have not given this key yet?
//	Post    my latest value of this key; and: which values have these ranks posted?
//	Alive   sent every second, without content
//
// # What the coordinator sends
//
//	Gathered  the values of a key, once all members have given theirs
//	Asked     another rank reports this failure; what do you know of it?
//	Answered  the answers of the ranks, sent to the rank that reported
//	Failed    why the group broke
//	Settled   all ranks know of the failure
//	Leaving   these ranks leave alone; answer when you do not need them any more
//	Left      all members have left
//	Queried   the members that have not given the key
//	Posted    your value is stored, and these are the values that you asked for
//
// # Which failure is the first
//
// The failure of one rank often causes failures on other ranks. The coordinator takes the
// failure that it receives first, with three exceptions:
//
//   - If a rank's connection ends before the rank has left the session, the rank is dead. This
//     failure is decided at once.
//   - If a report names ranks, such as "the connection to rank 2 broke", the coordinator asks
//     those ranks and decides when they have answered. If rank 2 died, the end of its connection
//     arrives instead of the answer. If rank 2 has failed itself, its own report arrives before
//     its answer and replaces the first report. If rank 2 has left, its leaving is the failure.
//   - A deadline that passed does not say which rank is at fault. The rank that reports it gets
//     the answers of all ranks, and then names the ranks that are late. Any other failure that
//     arrives meanwhile replaces the report.
//
// If the rank that reported a failure dies or leaves before the decision, its report is
// decided. If it hangs, another rank takes over by asking for a decision twice.
//
// # What a decision does
//
// The coordinator sends Failed to all ranks. A rank acknowledges it once none of its calls can
// be reported as successful any more. When all ranks have acknowledged, or are lost, the
// coordinator sends Settled. Only then may a rank abort transfers that its peers read from: a
// peer that reads wrong data by then does not report the call as successful.
//
// A failure breaks all groups, unless the ranks joined with Isolated. If a group is still being
// made, its failure breaks this group alone.
//
// # Which ranks are lost
//
// The end of a connection says that a process has ended. If a host has not answered for 20
// seconds, the kernel at the other end closes the connection. A suspended process loses its connection
// after Options.Silence, which is long; usually a deadline passes on its peers before.
//
// If the coordinator is lost, or silent for Options.Silence, that is a failure on every rank. It
// names no rank, unless a rank hosted the coordinator. Ranks without a coordinator cannot notify
// each other, so they rely on time:
//
//   - A rank that has not heard from the coordinator for five intervals does not report any call
//     as successful ([Group.Quiet]).
//   - A rank that breaks its groups without the coordinator waits for six intervals before it
//     aborts ([Group.Settled]).
//   - A rank that has reported a failure, and has not heard from the coordinator for six
//     intervals, breaks its groups because of that report.
//   - If a report is not decided within five intervals, because a rank that is asked is
//     suspended, the reporter asks the coordinator to decide it without the answer.
//
// A message counts as received when it has reached the rank's host, even if the process has not
// read it. So a rank that was suspended does not report a call as successful that ended
// because other ranks aborted meanwhile. On the rank that hosts the coordinator, reports from
// other ranks count as received in the same way.
//
// Both ends count the intervals in which they themselves ran. So a job that is suspended as a
// whole loses no rank.
//
// # Costs
//
// A death costs each rank three messages, and an overdue call five. Only gathers grow with the
// square of the number of ranks, because the values of all members go to all members. A posted
// value goes only to the ranks that ask for it. The coordinator keeps the latest value of each
// rank and key until all members have left the group.
//
// # Structure
//
// [Core] makes the decisions for one session. It is a pure state machine. The scenarios in
// testdata describe its behaviour, and a simulation runs it through many schedules with faults.
// [Server] is the coordinator's end of the connections, [Client] a rank's end. [Server.Local]
// connects a rank of the coordinator's process.
package coordinator
