// Package coordinator transfers everything but tensors between the ranks of a job: which ranks
// have joined and left, the addresses of ranks, the settings that must be equal on all ranks, and
// why a group broke.
//
// Every rank has one connection to the coordinator for each Init. golaunch hosts the
// coordinator; under other launchers, rank 0 hosts it. If ranks report failures, the coordinator
// chooses the first failure and sends it to all ranks. Process groups that the program splits off, the
// checks of debug modes and the parts of a backend share this one connection. Each of them uses its own
// group names or keys.
// Ranks in messages are numbers in the job, not in a group.
//
// # What ranks send
//
//	Join    I join: my process, my settings, which must be equal on all ranks, and a value
//	Gather  my value of this key, for the members of this group
//	Fail    I report this failure, or a timeout; ask these ranks before you decide
//	Ack     I acknowledge the failure, or: this is my answer to your question
//	Leave   I leave this group, or the session, without a failure
//	Query   which members have not sent a Gather with this key yet?
//	Post    my latest value of this key; and: which values have these ranks posted?
//	Enter   I am ready for the next epoch of an elastic job
//	Alive   sent every second, without content
//
// # What the coordinator sends
//
//	Gathered  the values of a key, once all members have sent theirs
//	Asked     another rank reports this failure; what do you know of it?
//	Answered  the answers of the ranks, sent to the rank that reported the failure
//	Failed    why the group broke
//	Settled   all ranks have acknowledged the failure
//	Leaving   these ranks leave without waiting for you; answer when you do not need them any more
//	Left      all members have left
//	Queried   the members that have not sent a Gather with the key
//	Posted    your value is stored; these are the values that you asked for, once all are posted
//	Begun     the next epoch has begun, with these workers
//	Released  you shall end: the job goes on without you
//	Alive     as above
//
// # Which failure is the first
//
// The failure of one rank often causes failures on other ranks. The coordinator chooses the
// failure that it receives first, with three exceptions:
//
//   - If a rank's connection ends before the rank has left the session, the rank is dead. The
//     coordinator chooses this failure at once.
//   - If a report names ranks, such as "the connection to rank 2 broke", the coordinator asks
//     those ranks and decides when they have answered. If rank 2 died, the end of its connection
//     arrives instead of the answer. If rank 2 has failed itself, its own report arrives before
//     its answer and replaces the first report. If rank 2 has left, its leaving is the failure.
//   - A timeout does not say which rank is at fault. The rank that reports a timeout gets the
//     answers of all ranks, and then names the ranks that are late. Any other failure that
//     arrives meanwhile replaces the report.
//
// If the rank that reported a failure dies or leaves before the decision, the coordinator chooses
// the failure that this rank reported. If this rank hangs, another rank can ask for a decision; the
// coordinator decides at the second request.
//
// # What a decision does
//
// The coordinator sends the chosen failure to all ranks, as Failed. A rank acknowledges the failure
// once the rank can no longer report any of its calls as successful. When all ranks have
// acknowledged, or are lost, the coordinator sends Settled. Only then may a rank abort transfers
// that its peers read from. The abort may give a peer wrong data, but this peer can no longer report
// its call as successful.
//
// A failure usually breaks all groups. A failure that a rank reports in one group breaks only that group
// in three cases: the ranks joined with Isolated, the group is still being made, or the failure is
// Confined. A failure of the group of all ranks always breaks all groups.
//
// # Which ranks are lost
//
// A rank is lost when its connection ends. If a host has not answered for 20 seconds, the kernel at
// the other end closes the connection. A suspended process loses its connection after
// Options.Silence. Usually a call of another rank times out before that.
//
// If the connection to the coordinator ends, or the coordinator is silent for Options.Silence, every
// rank has a failure. The failure names no rank, unless a rank hosted the coordinator. Ranks without
// a coordinator cannot notify each other, so they rely on time. An interval is Options.Interval.
//
//   - A rank that has not heard from the coordinator for five intervals does not report any call
//     as successful ([Group.Quiet]).
//   - A rank that breaks its groups without the coordinator waits for six intervals before it
//     aborts ([Group.Settled]).
//   - A rank that has reported a failure, and has not heard from the coordinator for six
//     intervals, breaks its groups with the failure that it reported.
//   - The coordinator may wait for the answer of a suspended rank. If it has chosen no failure five
//     intervals after a report, the reporter asks it to decide without that answer.
//
// A message counts as received when it has reached the rank's host, even if the process has not
// read it. This protects a rank that was suspended: if its call ended because other ranks aborted,
// their failure is among its unread messages, so the rank does not report the call as successful. On
// the rank that hosts the coordinator, reports from other ranks count as received in the same way.
//
// Rank and coordinator each count only the intervals in which they themselves ran. So a job that is
// suspended as a whole loses no rank.
//
// # Costs
//
// A death costs each rank three messages, and a call that times out costs it five. Only the traffic
// of gathers grows with the square of the number of ranks, because the values of all members go to
// all members. A posted value goes only to the ranks that ask for it. The coordinator keeps the
// latest posted value of each rank and key until all members have left the group.
//
// # Structure
//
// [Core] decides which messages the coordinator sends in one session. It is a pure state machine.
// The scenarios in testdata describe its behaviour, and a simulation runs it through many schedules
// with faults. [Membership] is another one: it decides which workers of an elastic job form the next
// epoch. [Server] is the coordinator's end of the connections, [Client] is a rank's end.
// [Server.Local] connects a rank that runs in the coordinator's process.
package coordinator
